//go:build !unix || aix || solaris

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func guardMain([]string) {}

func writeInBackground() {}

func newRun(*store) *cobra.Command {
	return &cobra.Command{
		Use:                "run",
		Short:              "(not on this system)",
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return exit{exitUsage, errors.New("run works on Linux, macOS and the BSDs only")}
		},
	}
}
