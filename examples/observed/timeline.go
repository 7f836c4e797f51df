package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

const window = time.Minute // that is drawn

// A bar is a hold, a wait, an acquisition that failed without a wait, or a renewal that failed. Times
// are milliseconds since 1970.
type bar struct {
	ID     int    `json:"id"`
	Key    string `json:"key"`
	Kind   string `json:"kind"` // hold, wait, fail or renewal
	Who    string `json:"who"`
	Start  int64  `json:"start"`
	End    int64  `json:"end,omitempty"`    // 0 while it goes on
	How    string `json:"how,omitempty"`    // it ended
	Holder string `json:"holder,omitempty"` // when a wait began
}

// A timeline keeps the last minute's bars, and sends each to all who listen, when it begins and
// when it ends.
type timeline struct {
	mu        sync.Mutex
	last      int // ID
	bars      map[int]*bar
	pruned    time.Time
	listeners map[chan []byte]struct{}
}

func newTimeline() *timeline {
	return &timeline{bars: make(map[int]*bar), listeners: make(map[chan []byte]struct{})}
}

// bars of an acquisition, and whose it is.
type bars struct {
	who        string
	wait, hold *bar
}

type barsKey struct{}

func barsOf(ctx context.Context) *bars { return ctx.Value(barsKey{}).(*bars) }

// observer returns an Observer that adds bars.
func (t *timeline) observer() *dlock.Observer {
	return &dlock.Observer{
		AcquireStart: func(ctx context.Context, _ dlock.AcquireStartInfo) context.Context {
			return context.WithValue(ctx, barsKey{}, &bars{who: workerOf(ctx)})
		},
		WaitStart: func(ctx context.Context, i dlock.WaitStartInfo) {
			b := barsOf(ctx)
			b.wait = t.begin(bar{Kind: "wait", Key: i.Key, Who: b.who, Holder: i.Owner})
		},
		AcquireDone: func(ctx context.Context, i dlock.AcquireDoneInfo) context.Context {
			b, how := barsOf(ctx), outcome(i.Err)
			t.end(b.wait, time.Now(), how)
			switch {
			case i.Err == nil:
				b.hold = t.begin(bar{Kind: "hold", Key: i.Key, Who: b.who})
			case b.wait == nil && how == "failed":
				now := time.Now().UnixMilli()
				t.begin(bar{Kind: "fail", Key: i.Key, Who: b.who, Start: i.Start.UnixMilli(), End: now, How: how})
			}
			return ctx
		},
		RenewDone: func(ctx context.Context, i dlock.RenewDoneInfo) {
			if now := time.Now().UnixMilli(); i.Err != nil {
				t.begin(bar{Kind: "renewal", Key: i.Key, Who: barsOf(ctx).who, Start: now, End: now, How: "failed"})
			}
		},
		LeaseDone: func(ctx context.Context, i dlock.LeaseDoneInfo) {
			t.end(barsOf(ctx).hold, i.At, string(i.End))
		},
	}
}

// outcome returns how an acquisition ended, in a word.
func outcome(err error) string {
	switch {
	case err == nil:
		return "granted"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled"
	case errors.Is(err, dlock.ErrHeld):
		return "held"
	}
	return "failed"
}

// begin adds a bar. It begins now unless it has a Start.
func (t *timeline) begin(b bar) *bar {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	if b.ID = t.last; b.Start == 0 {
		b.Start = time.Now().UnixMilli()
	}
	t.bars[b.ID] = &b
	t.pruneLocked()
	t.sendLocked(&b)
	return &b
}

// end ends a bar, unless it is nil.
func (t *timeline) end(b *bar, at time.Time, how string) {
	if b == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b.End, b.How = max(b.Start, at.UnixMilli()), how
	t.sendLocked(b)
}

func (t *timeline) pruneLocked() {
	now := time.Now()
	if now.Sub(t.pruned) < time.Second {
		return
	}
	t.pruned = now
	for id, b := range t.bars {
		if b.End > 0 && b.End < now.Add(-window).UnixMilli() {
			delete(t.bars, id)
		}
	}
}

// sendLocked sends a bar. It does not wait: a listener that is too slow must ask again.
func (t *timeline) sendLocked(b *bar) {
	if len(t.listeners) == 0 {
		return
	}
	text, _ := json.Marshal(b) // which cannot fail
	for l := range t.listeners {
		select {
		case l <- text:
		default:
			t.leaveLocked(l)
		}
	}
}

// listen returns what follows, and first the bars so far.
func (t *timeline) listen() chan []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := make(chan []byte, len(t.bars)+1000)
	for _, id := range slices.Sorted(maps.Keys(t.bars)) {
		text, _ := json.Marshal(t.bars[id])
		l <- text
	}
	t.listeners[l] = struct{}{}
	return l
}

func (t *timeline) leave(l chan []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaveLocked(l)
}

func (t *timeline) leaveLocked(l chan []byte) {
	if _, ok := t.listeners[l]; ok {
		delete(t.listeners, l)
		close(l)
	}
}

// ServeHTTP sends bars as server-sent events, until the caller goes away.
func (t *timeline) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	l := t.listen()
	defer t.leave(l)
	for {
		select {
		case text, ok := <-l:
			if !ok {
				return
			}
			if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
				return
			}
			if len(l) == 0 {
				_ = http.NewResponseController(w).Flush()
			}
		case <-r.Context().Done():
			return
		}
	}
}
