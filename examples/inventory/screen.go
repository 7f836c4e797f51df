package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// A screen shows how far a sale is: on a terminal in one line that changes, and
// elsewhere with a line every now and then.
type screen struct {
	out      io.Writer
	every    time.Duration
	terminal bool
}

func newScreen(out io.Writer) *screen {
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return &screen{out, 50 * time.Millisecond, true}
		}
	}
	return &screen{out, 500 * time.Millisecond, false}
}

// follow runs s, shows how it goes, and returns its error.
func (v *screen) follow(ctx context.Context, s *sale) error {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { v.watch(s, done) })
	err := s.run(ctx)
	close(done)
	wg.Wait()
	return err
}

func (v *screen) watch(s *sale, done <-chan struct{}) {
	ticker := time.NewTicker(v.every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			v.print(s)
		case <-done:
			v.print(s)
			if v.terminal {
				fmt.Fprintln(v.out)
			}
			return
		}
	}
}

func (v *screen) print(s *sale) {
	left, sold := s.shop.counts()
	line := fmt.Sprintf("%-14s  %*d left  %*d sold", s.name, width(s.stock), left, width(s.stock)+1, sold)
	if !v.terminal {
		fmt.Fprintln(v.out, line)
		return
	}
	const toStart, clear = "\r", "\x1b[K"
	fmt.Fprint(v.out, toStart, line, "  ", bar(s.stock-left, s.stock), clear)
}

// bar shows which part of all is done.
func bar(done, all int) string {
	const length = 30
	full := min(max(done*length/all, 0), length)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", length-full) + "]"
}

func width(n int) int { return len(fmt.Sprint(n)) }
