package stress

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/redistest"
)

const calmLimit = 2 * time.Minute // until all are served when the faults have ended

// A round is one run of workers while faults strike the servers.
type round struct {
	*journal
	t       *testing.T
	masters func() []*redistest.Server
	workers *workerGroup
	stop    context.Context // for the workers
	endWork context.CancelFunc
	limit   context.Context // of what they have begun; it ends when waiters are not served in time
	giveUp  context.CancelFunc
}

func newRound(t *testing.T, masters func() []*redistest.Server) *round {
	r := &round{journal: newJournal(), t: t, masters: masters}
	r.limit, r.giveUp = context.WithCancel(t.Context())
	r.stop, r.endWork = context.WithCancel(r.limit)
	r.workers = &workerGroup{journal: r.journal, stop: r.stop, limit: r.limit}
	return r
}

// settle ends the workers, who must all be served.
func (r *round) settle() {
	r.fault("calm")
	late := time.AfterFunc(calmLimit, func() {
		waiting := r.waiting(func(*wait) bool { return true })
		r.t.Errorf("not served within %v:\n%s\n%s", calmLimit, strings.Join(waiting, "\n"), r.state())
		r.giveUp()
	})
	defer late.Stop()
	r.endWork()
	r.workers.wg.Wait()
}

// state is what the servers have stored for locks.
func (r *round) state() (text string) {
	for _, m := range r.masters() {
		for _, args := range [][]string{{"KEYS", "*"}, {"PUBSUB", "CHANNELS"}} {
			reply, err := m.Do(args...)
			text += fmt.Sprintf("%s: %q: %q, %v\n", m.Addr(), args, reply, err)
		}
	}
	return text
}

// closeAll closes everything, and checks that the servers store nothing but fence counters, and that nobody subscribes.
func (r *round) closeAll() {
	r.giveUp()
	r.workers.close()
	for _, args := range [][]string{{"KEYS", "*"}, {"PUBSUB", "CHANNELS", "*dlock1*"}, {"PUBSUB", "SHARDCHANNELS", "*dlock1*"}} {
		awaitNil(r.t, strings.Join(args, " ")+" to be empty", func() error {
			for _, m := range r.masters() {
				reply, err := m.Do(args...)
				if _, old := err.(redistest.Error); old { // before Redis 7 there are no shard channels
					continue
				} else if err != nil {
					return err
				}
				names := slices.DeleteFunc(reply.([]any), func(name any) bool { // the counters of fences, and the marker of votes
					return strings.HasSuffix(name.(string), "}dlock1:fence") || name == "dlock1:birth"
				})
				if len(names) > 0 {
					return fmt.Errorf("%s has %q", m.Addr(), names)
				}
			}
			return nil
		})
	}
}

// report logs a summary, and fails the test for what must not be, except for a violation that may be.
func (r *round) report(mayBe func(*history.Violation) bool) {
	r.t.Log(r.summary())
	t := time.Now()
	if stepped := t.Round(0).Sub(r.begun.Round(0)) - t.Sub(r.begun); stepped.Abs() > 100*time.Millisecond {
		r.t.Logf("inconclusive: the clock of this machine, by which servers end leases, was set by %v during the round", stepped)
		return
	}
	h, violations := r.judged()
	for _, v := range violations {
		if mayBe(v) {
			r.t.Log(v)
		} else {
			r.t.Errorf("%v\n%s", v, r.around(h, v))
		}
	}
	for _, e := range r.errors {
		r.t.Error(e)
	}
}

// lasts returns how long a part of DLOCK_LONG lasts.
func lasts(t *testing.T, part string, otherwise time.Duration) time.Duration {
	t.Helper()
	text := long.Of(part)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, part)
	return d
}

// watchGoroutines returns a function that waits until all goroutines that were started in
// between have ended, but for those that attend a server.
func watchGoroutines(t *testing.T) (await func()) {
	attend := goleak.IgnoreAnyFunction("github.com/dlock-go/dlock/internal/redistest.(*process).attend")
	current := goleak.IgnoreCurrent()
	return func() { awaitNil(t, "goroutines to end", func() error { return goleak.Find(current, attend) }) }
}

// awaitNil waits until f returns nil.
func awaitNil(t *testing.T, what string, f func() error) {
	t.Helper()
	err := f()
	for limit := time.Now().Add(calmLimit); err != nil && time.Now().Before(limit); err = f() {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Errorf("waiting for %s: %v", what, err)
	}
}
