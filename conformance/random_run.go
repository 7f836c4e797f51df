package conformance

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/internal/history"
)

// A randomRun has several workers do random things, and records them.
type randomRun struct {
	s        *scene
	ttl      time.Duration
	seed     uint64
	recorder *history.Recorder
	rounds   int            // of each worker, at least
	want     map[string]int // how often things must happen, or the run proves little

	mu   sync.Mutex
	seen map[string]int // how often they have
}

func newRandomRun(s *scene, rounds int) *randomRun {
	r := &randomRun{s: s, ttl: s.h.coreTTL(), seed: seed(), recorder: history.NewRecorder(time.Now()), rounds: s.amount(rounds), seen: make(map[string]int)}
	fmt.Fprintf(s.t.Output(), "%s=%d\n", seedVariable, r.seed)
	return r
}

// saw counts what has happened.
func (r *randomRun) saw(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[what]++
}

// lacks says how often the wanted things have happened, or "" if each has so many times.
func (r *randomRun) lacks() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	enough := true
	for _, what := range slices.Sorted(maps.Keys(r.want)) {
		all = append(all, fmt.Sprintf("%s %d times, of at least %d", what, r.seen[what], r.want[what]))
		enough = enough && r.seen[what] >= r.want[what]
	}
	if enough {
		return ""
	}
	return strings.Join(all, "; ")
}

// goesOn is true until a worker has done its rounds and enough has happened, or enough would never happen.
func (r *randomRun) goesOn(n int) bool {
	return !r.s.over() && n < 20*r.rounds && (n < r.rounds || r.lacks() != "")
}

// verdict says what is wrong with what happened: what the workers noted, and the piece of the history that was found
// to be impossible. Each may be nil.
func (r *randomRun) verdict(h *history.History, v *history.Violation, err error) error {
	undecided := errors.Is(err, errInconclusive) || errors.As(err, new(skipError))
	switch lacks := r.lacks(); {
	case v != nil && (err == nil || undecided):
		err = errors.New(v.String())
	case v != nil:
		err = fmt.Errorf("%w\n%v", err, v)
	case undecided:
		return err
	case err == nil && lacks == "":
		return nil
	case err == nil:
		err = fmt.Errorf("too little happened to prove anything: %s", lacks)
	}
	return &historyError{err, r.seed, h, v}
}

// A historyError says what is wrong with a random history, how to repeat it, and can draw it.
type historyError struct {
	err       error
	seed      uint64
	history   *history.History
	violation *history.Violation // nil if no piece of the history is to blame
}

func (e *historyError) Error() string {
	return fmt.Sprintf("%v\n%s=%d makes the same random choices again", e.err, seedVariable, e.seed)
}

func (e *historyError) Unwrap() error { return e.err }

// keepPicture writes the picture of a history that failed, and says where it is. With the flag -artifacts that is among the
// artifacts of t; otherwise it is a temporary file, since those of t would be gone when the test has ended.
func keepPicture(t *testing.T, err error) string {
	var e *historyError
	if !errors.As(err, &e) {
		return ""
	}
	dir := os.TempDir()
	if f := flag.Lookup("test.artifacts"); f != nil && f.Value.String() == "true" {
		dir = t.ArtifactDir()
	}
	path := filepath.Join(dir, fmt.Sprintf("dlock-history-%d.html", e.seed))
	if err := os.WriteFile(path, history.Picture(e.history, e.violation, t.Name(), e.Error()), 0o600); err != nil {
		return fmt.Sprintf("\nno picture of the history: %v", err)
	}
	return "\npicture of the history: " + path
}

// coreTTL is the shortest TTL that the store keeps honestly and a Client accepts.
func (h Harness) coreTTL() time.Duration { return max(h.ttl(), 100*time.Millisecond) }

// seedVariable is the environment variable that repeats a random case with the seed that its failure has printed.
const seedVariable = "DLOCK_CONFORMANCE_SEED"

func seed() uint64 {
	if n, err := strconv.ParseUint(os.Getenv(seedVariable), 10, 64); err == nil {
		return n
	}
	return rand.Uint64()
}

// amount is how much of something random is done: n in real time, more in
// virtual time, which costs nothing, and less in real time with -short.
func (s *scene) amount(n int) int {
	if s.h.Bubble {
		return 4 * n
	}
	return s.h.rounds(n)
}

// A plan makes the random choices of one worker.
type plan struct {
	*rand.Rand
	ttl time.Duration
}

func newPlan(seed uint64, worker int, ttl time.Duration) *plan {
	return &plan{rand.New(rand.NewPCG(seed, uint64(worker))), ttl}
}

// within draws a duration between 1 ns and d.
func (p *plan) within(d time.Duration) time.Duration { return 1 + time.Duration(p.Int64N(int64(d))) }

// rarely is 0, or up to d one time in n.
func (p *plan) rarely(n int, d time.Duration) time.Duration {
	if d = p.within(d); p.IntN(n) == 0 {
		return d
	}
	return 0
}
