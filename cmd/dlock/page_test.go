package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

const page = "../../docs/command.md"

var update = flag.Bool("update", false, "write the flags in "+page)

//go:generate go test -run TestPage -update .

// TestPage compares the page with the flags.
func TestPage(t *testing.T) {
	old, err := os.ReadFile(page)
	require.NoError(t, err)
	const mark = "-update. -->\n"
	before, _, ok := strings.Cut(string(old), mark)
	require.True(t, ok)
	root := newRoot()
	root.InitDefaultCompletionCmd()
	var text strings.Builder
	text.WriteString(before + mark)
	for _, c := range root.Commands() {
		if c.Name() != "completion" && c.Name() != "help" {
			describe(&text, c)
		}
	}
	fmt.Fprintf(&text, "\n## Flags of all commands\n\n```\n%s```\n", root.PersistentFlags().FlagUsages())
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(text.String()), 0o600))
		return
	}
	require.Equal(t, text.String(), string(old), "go generate ./... in cmd/dlock writes the page")
}

func describe(text *strings.Builder, c *cobra.Command) {
	about := c.Long
	if about == "" {
		about = strings.ToUpper(c.Short[:1]) + c.Short[1:] + "."
	}
	fmt.Fprintf(text, "\n## dlock %s\n\n%s\n\n```\n%s\n\n%s```\n", c.Name(), about, c.UseLine(), c.LocalNonPersistentFlags().FlagUsages())
}
