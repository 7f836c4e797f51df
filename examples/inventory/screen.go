package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// A screen shows how far a sale is: on a terminal in one line that changes, and
// elsewhere with a line every now and then.
type screen struct {
	out     io.Writer
	every   time.Duration
	columns func() int // of the terminal; nil if it is none
}

func newScreen(out io.Writer) *screen {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return &screen{out: out, every: 500 * time.Millisecond}
	}
	columns := func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil || width <= 0 {
			return 80
		}
		return width
	}
	return &screen{out: out, every: 50 * time.Millisecond, columns: columns}
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
			if v.columns != nil {
				fmt.Fprintln(v.out)
			}
			return
		}
	}
}

func (v *screen) print(s *sale) {
	left, sold := s.shop.counts()
	line := fmt.Sprintf("%-14s  %*d left  %*d sold", s.name, width(s.stock), left, width(s.stock)+1, sold)
	if v.columns == nil {
		fmt.Fprintln(v.out, line)
		return
	}
	line += "  " + bar(s.stock-left, s.stock)
	const toStart, clear = "\r", "\x1b[K"
	fmt.Fprint(v.out, toStart, line[:min(len(line), max(v.columns()-1, 0))], clear)
}

// bar shows which part of all is done.
func bar(done, all int) string {
	const length = 30
	full := min(max(done*length/all, 0), length)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", length-full) + "]"
}

func width(n int) int { return len(fmt.Sprint(n)) }
