package world

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
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

// A job is what a client does with a key.
type job struct {
	at       time.Duration
	process  int
	key      string
	once     bool // it does not wait
	patience time.Duration
	hold     time.Duration
	renews   bool
	detaches bool // another client adopts the lease after a half of the hold
	set      bool // of all keys that jobs want

	outage, minHold, maxHold time.Duration
}

func (j job) String() string {
	verb, how := "acquires", ""
	if j.once {
		verb = "tries"
	}
	if !j.renews {
		how = ", without renewals"
	}
	if j.detaches {
		how += ", and hands it on"
	}
	if j.set {
		verb = "acquires all keys, like"
	}
	for name, d := range map[string]time.Duration{"WithMinHold": j.minHold, "WithMaxHold": j.maxHold, "WithOutage": j.outage % time.Hour} {
		if d > 0 {
			how += fmt.Sprintf(", %s(%v)", name, d)
		}
	}
	return fmt.Sprintf("%s %s %q for at most %v, and holds it for %v%s", letter(j.process), verb, j.key, j.patience, j.hold, how)
}

// A storm is a time in which faults may happen.
type storm struct{ from, to time.Duration }

// A fault happens to a server, to a process, or between them.
type fault struct {
	at, lasts time.Duration
	what      what
	process   int
	store     int
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

func (f fault) String() string {
	who := fmt.Sprint("server ", f.store)
	switch f.what {
	case kills, cuts:
		who = letter(f.process)
	case cutsOff:
		who = fmt.Sprintf("%s and server %d:", letter(f.process), f.store)
	}
	if f.lasts > 0 {
		return fmt.Sprintf("%s %s for %v", who, f.what, f.lasts)
	}
	return fmt.Sprintf("%s %s", who, f.what)
}

// A mishap is what happens to a trip.
type mishap struct {
	lostRequest, lostReply bool
	lateRequest, lateReply time.Duration
	again                  time.Duration // after which a second copy of the request arrives
}

func (m mishap) String() string {
	var all []string
	for text, is := range map[string]bool{
		"the request is lost": m.lostRequest,
		"the reply is lost":   m.lostReply,
		fmt.Sprint("the request is late by ", m.lateRequest):    m.lateRequest > 0,
		fmt.Sprint("the reply is late by ", m.lateReply):        m.lateReply > 0,
		fmt.Sprint("the request arrives again after ", m.again): m.again > 0,
	} {
		if is {
			all = append(all, text)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
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
	slices.SortStableFunc(p.jobs, func(a, b job) int { return cmp.Compare(a.at, b.at) })
	sets := p.draws("sets")
	for i := range p.jobs {
		p.jobs[i].set = sets.IntN(6) == 0
	}
	p.terms(p.draws("terms"))
	return p
}

// terms draws options of the Client. A third of the plans has jobs with a MinHold or a MaxHold.
func (p *plan) terms(r *rand.Rand) {
	limits := r.IntN(3) == 0
	for i := range p.jobs {
		j := &p.jobs[i]
		j.outage = []time.Duration{time.Hour, time.Hour, 0, upTo(r, 10*time.Second)}[r.IntN(4)]
		switch n := r.IntN(8); {
		case limits && n == 0 && !j.detaches:
			j.minHold = upTo(r, p.ttl*3/2)
			p.keeps = max(p.keeps, j.minHold)
		case limits && n == 1:
			j.maxHold, j.hold, j.renews = upTo(r, p.ttl), 3*p.ttl, true
		}
	}
}

// options are those of the Client that does a job.
func (j job) options() []dlock.Option {
	return []dlock.Option{dlock.WithRenewal(j.renews), dlock.WithOutage(j.outage), dlock.WithMinHold(j.minHold), dlock.WithMaxHold(j.maxHold)}
}

func (p *plan) job(r *rand.Rand, at time.Duration, key string, hold time.Duration) job {
	j := job{
		at: at, process: r.IntN(len(p.turns)), key: key, once: r.IntN(6) == 0,
		patience: upTo(r, 4*p.ttl), hold: upTo(r, hold), renews: r.IntN(4) > 0, detaches: r.IntN(12) == 0,
	}
	switch r.IntN(12) {
	case 0:
		j.hold += upTo(r, 2*p.ttl)
	case 1: // until its lease ends
		j.hold, j.renews = 2*p.ttl, false
	}
	return j
}

func (p *plan) fault(r *rand.Rand, from, to time.Duration) fault {
	f := fault{
		at: from + upTo(r, to-from), process: r.IntN(len(p.turns)), store: r.IntN(p.kind.stores()),
		what: []what{kills, kills, cuts, cutsOff, cutsOff, restarts, loads, readOnly, full}[r.IntN(9)],
	}
	if n := p.kind.replicas(); n > 0 && r.IntN(2) == 0 {
		f.what = fails
	} else if n > 0 && f.what == restarts { // and has its data back from nowhere
		f.what = loads
	}
	switch f.what {
	case kills, cuts:
	default:
		f.lasts = upTo(r, to-f.at)
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
		m.lostRequest = true
	case n < 4:
		m.lostReply = true
	case n < 6:
		m.lateReply = upTo(r, 2*time.Second)
	case !p.late:
		m.lostRequest = true
	case n == 6:
		m.lateRequest = upTo(r, 3*p.ttl)
	default:
		m.lostRequest, m.again = true, upTo(r, 2*p.ttl)
	}
	return m
}

// end is when the last storm is over.
func (p *plan) end() time.Duration {
	if len(p.storms) == 0 {
		return 0
	}
	return p.storms[len(p.storms)-1].to
}

// stormy reports whether there is a storm.
func (p *plan) stormy(at time.Duration) bool {
	return slices.ContainsFunc(p.storms, func(s storm) bool { return s.from <= at && at < s.to })
}

// calm reports whether there is no storm in a time.
func (p *plan) calm(from, to time.Duration) bool {
	return !slices.ContainsFunc(p.storms, func(s storm) bool { return from < s.to && s.from < to })
}

// size is the number of things that happen in a plan whose mishaps are listed.
func (p *plan) size() int { return len(p.jobs) + len(p.faults) + len(p.mishaps) }

// String lists what happens.
func (p *plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d processes, %s, TTL %v, a leg takes %v, turns %v\n", p.seed, len(p.turns), p.kind, p.ttl, p.trip, p.turns)
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for _, j := range p.jobs {
		lines = append(lines, line{j.at, j.String()})
	}
	for _, f := range p.faults {
		lines = append(lines, line{f.at, f.String()})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	for _, l := range lines {
		fmt.Fprintf(&b, "%12.3fms  %s\n", float64(l.at)/1e6, l.text)
	}
	for _, trip := range sortedKeys(p.mishaps) {
		fmt.Fprintf(&b, "%14s  %s: %v\n", "", trip, p.mishaps[trip])
	}
	return b.String()
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
