package world

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
)

// A plan is what is done with a world, and to it. Its times count from when the servers are ready. The seed decides how
// long trips take, too, and about mishaps that are not listed.
type plan struct {
	setup
	trip    time.Duration // of a leg, on average
	lost    float64       // the share of trips in storms that have a mishap
	late    bool          // some requests arrive when the client has given them up
	jobs    []job
	keeps   time.Duration // the longest MinHold
	storms  []storm
	faults  []fault
	mishaps map[string]mishap // by trip; nil if the seed draws them during storms
}

var kinds = []kind{queues, queues, queues, polls, polls, replicas, replicas, failover, majority}

// A job is what a client does with a key. What is exported is printed.
type job struct {
	At       time.Duration
	Process  int
	Key      string
	Once     bool // it does not wait
	Patience time.Duration
	Hold     time.Duration
	Renews   bool
	Detaches bool // another client adopts the lease after a half of the hold
	Set      bool // of all keys that jobs want
	Repeats  bool // the holder repeats its attempt
	Late     bool // it is adopted when it may have ended

	Outage, MinHold, MaxHold time.Duration
}

// A storm is a time in which faults may happen.
type storm struct{ from, to time.Duration }

// A fault happens to a server, to a process, or between them.
type fault struct {
	At, Lasts time.Duration
	What      what
	Process   int
	Store     int
}

type what string

const (
	kills    what = "is killed, and another takes its place"
	cuts     what = "loses its connections"
	cutsOff  what = "is cut off"
	restarts what = "restarts without its data"
	loads    what = "is loading"
	readOnly what = "is read-only"
	full     what = "is full"
	fails    what = "fails, and a replica takes its place"
)

// A mishap is what happens to a trip.
type mishap struct {
	LostRequest, LostReply bool
	LateRequest, LateReply time.Duration
	Again                  time.Duration // after which a second copy of the request arrives
}

// leg draws how long a leg takes.
func (p *plan) leg(r *rand.Rand) time.Duration {
	return time.Duration(r.ExpFloat64() * float64(p.trip))
}

// upTo draws a duration up to d.
func upTo(r *rand.Rand, d time.Duration) time.Duration { return 1 + time.Duration(r.Int64N(int64(d))) }

// newPlan draws a plan.
func newPlan(seed uint64) *plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := &plan{
		setup: setup{
			seed: seed, kind: kinds[r.IntN(len(kinds))], lag: upTo(r, 100*time.Millisecond),
			ttl: 4*time.Second + upTo(r, 8*time.Second).Round(time.Millisecond), outage: time.Hour,
		},
		trip: []time.Duration{100 * time.Microsecond, time.Millisecond, 20 * time.Millisecond}[r.IntN(3)],
		lost: []float64{0, 0.02, 0.1, 0.2}[r.IntN(4)],
		late: r.IntN(3) == 0,
	}
	for range 2 + r.IntN(4) {
		p.turns = append(p.turns, max(0, r.IntN(5)-1)*r.IntN(2))
	}
	var end time.Duration
	for range 1 + r.IntN(3) {
		begin := end + 5*time.Second + upTo(r, 15*time.Second)
		end = begin + 2*time.Second + upTo(r, 2*p.ttl)
		p.storms = append(p.storms, storm{begin, end})
		for range r.IntN(4) {
			p.faults = append(p.faults, p.fault(r, begin, end))
		}
	}
	keys, most := 3, 80 // and jobs for each
	if p.kind == majority {
		keys, most = 2, 20 // which make more calls
	}
	for _, key := range []string{"a", "b", "{c}"}[:1+r.IntN(keys)] {
		hold := max(p.ttl/50+upTo(r, p.ttl/4), end/time.Duration(most))
		crowd := 0.5 + r.Float64() // how many want a key at once
		for at := upTo(r, time.Second); at < end; at += time.Duration(float64(hold) * r.ExpFloat64() / crowd) {
			p.jobs = append(p.jobs, p.job(r, at, key, hold))
		}
	}
	slices.SortStableFunc(p.jobs, func(a, b job) int { return cmp.Compare(a.At, b.At) })
	sets := p.draws("sets")
	for i := range p.jobs {
		p.jobs[i].Set = sets.IntN(6) == 0
	}
	p.terms(p.draws("terms"))
	if p.kind == majority {
		p.drawBoard(p.draws("board"))
	}
	return p
}

// terms draws options of the Client. A third of the plans has jobs with a MinHold or a MaxHold.
func (p *plan) terms(r *rand.Rand) {
	limits := r.IntN(3) == 0
	for i := range p.jobs {
		j := &p.jobs[i]
		j.Outage = []time.Duration{time.Hour, time.Hour, 0, upTo(r, 10*time.Second)}[r.IntN(4)]
		switch n := r.IntN(8); {
		case limits && n == 0 && !j.Detaches:
			j.MinHold = upTo(r, p.ttl*3/2)
			p.keeps = max(p.keeps, j.MinHold)
		case limits && n == 1:
			j.MaxHold, j.Hold, j.Renews = upTo(r, p.ttl), 3*p.ttl, true
		}
	}
}

// options are those of the Client that does a job.
func (j job) options() []dlock.Option {
	return []dlock.Option{dlock.WithRenewal(j.Renews), dlock.WithOutage(j.Outage), dlock.WithMinHold(j.MinHold), dlock.WithMaxHold(j.MaxHold)}
}

func (p *plan) job(r *rand.Rand, at time.Duration, key string, hold time.Duration) job {
	j := job{
		At: at, Process: r.IntN(len(p.turns)), Key: key, Once: r.IntN(6) == 0,
		Patience: upTo(r, 4*p.ttl), Hold: upTo(r, hold), Renews: r.IntN(4) > 0, Detaches: r.IntN(12) == 0,
	}
	switch r.IntN(12) {
	case 0:
		j.Hold += upTo(r, 2*p.ttl)
	case 1: // until its lease ends
		j.Hold, j.Renews = 2*p.ttl, false
	}
	return j
}

func (p *plan) fault(r *rand.Rand, from, to time.Duration) fault {
	f := fault{
		At: from + upTo(r, to-from), Process: r.IntN(len(p.turns)), Store: r.IntN(p.kind.stores()),
		What: []what{kills, kills, cuts, cutsOff, cutsOff, restarts, loads, readOnly, full}[r.IntN(9)],
	}
	if n := p.kind.replicas(); n > 0 && r.IntN(2) == 0 {
		f.What = fails
	} else if n > 0 && f.What == restarts { // and has its data back from nowhere
		f.What = loads
	}
	switch f.What {
	case kills, cuts:
	default:
		f.Lasts = upTo(r, to-f.At)
	}
	return f
}

// mishap draws what happens to a trip in a storm.
func (p *plan) mishap(r *rand.Rand) (m mishap) {
	if r.Float64() >= p.lost {
		return m
	}
	switch n := r.IntN(8); {
	case n < 2:
		m.LostRequest = true
	case n < 4:
		m.LostReply = true
	case n < 6:
		m.LateReply = upTo(r, 2*time.Second)
	case !p.late:
		m.LostRequest = true
	case n == 6:
		m.LateRequest = upTo(r, 3*p.ttl)
	default:
		m.LostRequest, m.Again = true, upTo(r, 2*p.ttl)
	}
	return m
}

// end is when the last storm is over.
func (p *plan) end() time.Duration { return p.storms[len(p.storms)-1].to }

// stormy reports whether there is a storm.
func (p *plan) stormy(at time.Duration) bool {
	return slices.ContainsFunc(p.storms, func(s storm) bool { return s.from <= at && at < s.to })
}

// calm reports whether there is no storm in a time.
func (p *plan) calm(from, to time.Duration) bool {
	return !slices.ContainsFunc(p.storms, func(s storm) bool { return from < s.to && s.from < to })
}

// String lists what happens.
func (p *plan) String() string {
	text := fmt.Sprintf("seed %d: %d processes, %s, TTL %v, a leg takes %v, turns %v\n", p.seed, len(p.turns), p.kind, p.ttl, p.trip, p.turns)
	for _, item := range p.items() {
		text += fmt.Sprintf("%+v\n", item)
	}
	return text
}

// A listed mishap is one of a trip.
type listed struct {
	Trip   string
	Mishap mishap
}

// items are the jobs, faults and mishaps that shrinking can leave out. The jobs of a client stand together: often it is not needed at all.
func (p *plan) items() (all []any) {
	for _, j := range slices.SortedStableFunc(slices.Values(p.jobs), func(a, b job) int { return cmp.Compare(a.Process, b.Process) }) {
		all = append(all, j)
	}
	for _, f := range p.faults {
		all = append(all, f)
	}
	for _, trip := range slices.Sorted(maps.Keys(p.mishaps)) {
		all = append(all, listed{trip, p.mishaps[trip]})
	}
	return all
}

// without returns a plan without some of the things that happen in p.
func (p *plan) without(left map[any]bool) *plan {
	q := *p
	q.jobs = slices.DeleteFunc(slices.Clone(p.jobs), func(j job) bool { return left[j] })
	q.faults = slices.DeleteFunc(slices.Clone(p.faults), func(f fault) bool { return left[f] })
	q.mishaps = maps.Clone(p.mishaps)
	maps.DeleteFunc(q.mishaps, func(trip string, m mishap) bool { return left[listed{trip, m}] })
	return &q
}

// shrink leaves out of a plan, whose mishaps are listed, what it fails without: halves first, then
// quarters, as delta debugging does. It asks fails at most tries times.
func (p *plan) shrink(tries int, fails func(*plan) bool) *plan {
	all, left := p.items(), make(map[any]bool)
	for size := len(all); size > 0; size /= 2 {
		kept := slices.DeleteFunc(slices.Clone(all), func(i any) bool { return left[i] })
		for chunk := range slices.Chunk(kept, size) {
			if tries--; tries < 0 {
				return p.without(left)
			}
			less := maps.Clone(left)
			for _, i := range chunk {
				less[i] = true
			}
			if q := p.without(less); len(q.jobs) > 0 && fails(q) {
				left = less
			}
		}
	}
	return p.without(left)
}
