// Command dlock runs a program under a distributed lock on Redis.
//
//	dlock run --redis redis://localhost nightly-report -- make report
//
// The page docs/command.md has the exit codes, and says what is guaranteed: the process group of the program is dead
// before its lease ends. It can outlive the lease only if both dlock and its guard, a process between dlock and the
// program, are killed; if one of them runs late and the program ignores TERM; or if the program becomes a user whose
// processes dlock may not end. So fence writes that must not be late: the program finds the fence in DLOCK_FENCE.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// The exit codes, beside those of the program.
const (
	exitUsage       = 64  // the command line is wrong
	exitUnavailable = 69  // Redis did not answer
	exitHeld        = 75  // another holds the lock
	exitLost        = 79  // the lease was lost, and the program was ended
	exitOwnFault    = 125 // of dlock
	exitNotRun      = 126 // the program cannot be run
	exitNotFound    = 127 // there is no such program
	exitSignal      = 128 // plus the number of the signal
)

// guardCommand is the first argument of a process that is a guard.
const guardCommand = "__guard"

// An exit is an exit code, and the error of a command that has one.
type exit struct {
	code int
	err  error // nil: there is nothing to be said
}

func (e exit) Error() string { return fmt.Sprintf("exit code %d: %v", e.code, e.err) }

func main() {
	if len(os.Args) > 2 && os.Args[1] == guardCommand {
		guardMain(os.Args[2:])
		quit(0)
	}
	quit(execute())
}

// output is standard output. A write that fails ends this process.
type output struct{}

func (output) Write(text []byte) (int, error) {
	if _, err := os.Stdout.Write(text); err != nil {
		complain("%v", err)
		quit(exitOwnFault)
	}
	return len(text), nil
}

// execute runs the command line, and returns the exit code.
func execute() int {
	root := newRoot()
	root.SetOut(output{})
	err := root.Execute()
	e, ok := errors.AsType[exit](err)
	if err != nil && !ok {
		e = exit{exitUsage, err} // of cobra
	}
	if e.err != nil {
		complain("%s", strings.TrimPrefix(e.err.Error(), "dlock: "))
	}
	return e.code
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "dlock",
		Short:         "a distributed lock for the shell, on Redis",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	s := new(store)
	s.flags(root.PersistentFlags())
	root.AddCommand(newRun(s), newList(s), newShow(s), newBreak(s), newWatch(s), newDoctor(s))
	return root
}
