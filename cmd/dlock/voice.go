package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf16"
)

// A voice writes lines to standard error, in order. It may be halted, as a full pipe is, or a terminal after Ctrl-S.
// Whoever has a lock is not held up by that.
type voice struct {
	mu   sync.Mutex
	last <-chan struct{} // closed when the last line is written
}

var stderr voice

const (
	sayLimit  = 100 * time.Millisecond // for which a line is waited for
	quitLimit = time.Second            // the same at the end of this process
)

func complain(format string, args ...any) {
	line := "dlock: " + safe(fmt.Sprintf(format, args...)) + "\n"
	stderr.say(line, sayLimit)
}

// quit ends this process. What is not written soon is lost.
func quit(code int) {
	stderr.say("", quitLimit)
	os.Exit(code)
}

func (v *voice) say(text string, limit time.Duration) {
	v.mu.Lock()
	before, written := v.last, make(chan struct{})
	v.last = written
	v.mu.Unlock()
	go func() {
		defer close(written)
		if before != nil {
			<-before
		}
		writeInBackground()
		_, _ = os.Stderr.WriteString(text)
	}()
	select {
	case <-written:
	case <-time.After(limit):
	}
}

// lines is a [slog.Handler] that writes lines in the voice of this command. It shows times and errors.
type lines struct{ slog.Handler }

func (lines) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (lines) Handle(_ context.Context, r slog.Record) error {
	text, reason := strings.TrimPrefix(r.Message, "dlock: "), ""
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "for", "after":
			text += fmt.Sprintf(", %s %v", a.Key, a.Value.Duration().Round(time.Millisecond))
		case "error":
			reason = ": " + a.Value.String()
		}
		return true
	})
	complain("%s%s", text, reason)
	return nil
}

// safe returns a text as a terminal shows it, without what a terminal would do: \u001b for an escape character. It is
// the same text to a reader of JSON.
func safe(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r == '\n' || unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

// printable quotes a text that would change the terminal.
func printable(text string) string {
	if text == "" {
		return "-"
	}
	if quoted := fmt.Sprintf("%q", text); quoted != `"`+text+`"` {
		return quoted
	}
	return text
}

// encode writes a line of JSON.
func encode(out io.Writer, value any) {
	line, _ := json.Marshal(value) // of strings, numbers and times
	fmt.Fprintln(out, safe(string(line)))
}
