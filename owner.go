package dlock

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
)

// HostOwner returns a label for [WithOwner] that names this process: host name, program and
// process id, as in "web-7/billing[4711]". It has at most 256 bytes, and only printable
// characters. The label is visible in the store, in the errors of callers that find the key
// held, and in their logs.
func HostOwner() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return hostOwner(host, filepath.Base(os.Args[0]), os.Getpid())
}

func hostOwner(host, program string, pid int) string {
	const most = (maxOwner - len("/[18446744073709551615]")) / 2
	return printable(host, most) + "/" + printable(program, most) + "[" + strconv.Itoa(pid) + "]"
}

// printable returns s with a question mark for each character that cannot be printed, cut to
// at most most bytes.
func printable(s string, most int) string {
	var b strings.Builder
	for _, r := range s {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			r = '?'
		}
		if b.Len()+len(string(r)) > most {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}
