package conformance

import (
	"cmp"
	"context"
	"errors"

	"github.com/dlock-go/dlock/internal/faultproxy"
)

// A fleet is one proxy for each address of a store. Its faults strike the first of them, as many as
// it was made for.
type fleet struct {
	ends    context.Context // with the case
	proxies []*faultproxy.Proxy
	struck  []*faultproxy.Proxy
	minor   bool // the others are a majority, so calls succeed all the same
}

// addrs is where the store of DialAll, or of Dial, really is.
func (h Harness) addrs() []string {
	if h.DialAll == nil && h.Addr != "" {
		return []string{h.Addr}
	}
	return h.Addrs
}

// quorum is how many addresses are a majority.
func (h Harness) quorum() int { return len(h.addrs())/2 + 1 }

// spared is how many addresses may fail while the others are a majority.
func (h Harness) spared() int { return len(h.addrs()) - h.quorum() }

// fleet returns a client of the store, and the proxies that it goes through. Faults strike the
// first n of them.
func (s *scene) fleet(n int) (*client, *fleet, error) {
	f := &fleet{ends: s.ctx}
	var addrs []string
	for _, addr := range s.h.addrs() {
		p, err := faultproxy.New(addr)
		if err != nil {
			f.Close()
			return nil, nil, err
		}
		f.proxies, addrs = append(f.proxies, p), append(addrs, p.Addr())
	}
	f.struck, f.minor = f.proxies[:n], n <= s.h.spared()
	if s.h.DialAll != nil {
		return s.clientOf(s.h.DialAll(s.t, addrs), "Harness.DialAll"), f, nil
	}
	return s.clientOf(s.h.Dial(s.t, addrs[0]), "Harness.Dial"), f, nil
}

// The methods of a fleet are those of a faultproxy.Proxy.

func (f *fleet) Close() {
	for _, p := range f.proxies {
		p.Close()
	}
}

func (f *fleet) Cut() { f.strike((*faultproxy.Proxy).Cut) }

func (f *fleet) Refuse() { f.strike((*faultproxy.Proxy).Refuse) }

func (f *fleet) Block(d faultproxy.Direction) { f.strike(func(p *faultproxy.Proxy) { p.Block(d) }) }

func (f *fleet) Slow(d faultproxy.Direction, pace faultproxy.Pace) {
	f.strike(func(p *faultproxy.Proxy) { p.Slow(d, pace) })
}

func (f *fleet) strike(strike func(*faultproxy.Proxy)) {
	for _, p := range f.struck {
		strike(p)
	}
}

func (f *fleet) Heal() (err error) {
	f.strike(func(p *faultproxy.Proxy) { err = cmp.Or(err, p.Heal()) })
	return err
}

func (f *fleet) Watch(m faultproxy.Match) *faults {
	return f.each(func(p *faultproxy.Proxy) *faultproxy.Fault { return p.Watch(m) })
}

// DropReply is harmless if the others are a majority.
func (f *fleet) DropReply(m faultproxy.Match, e faultproxy.Ending) *faults {
	all := f.each(func(p *faultproxy.Proxy) *faultproxy.Fault { return p.DropReply(m, e) })
	all.harmless = f.minor
	return all
}

func (f *fleet) Hold(m faultproxy.Match, e faultproxy.Ending) *faults {
	return f.each(func(p *faultproxy.Proxy) *faultproxy.Fault { return p.Hold(m, e) })
}

// Lift reports whether no fault of all has struck yet.
func (f *fleet) Lift(all *faults) bool {
	lifted := true
	for i, p := range f.struck {
		lifted = p.Lift(all.each[i]) && lifted
	}
	return lifted
}

// faults are one for each proxy that is struck.
type faults struct {
	ends     context.Context
	each     []*faultproxy.Fault
	harmless bool // the call succeeds all the same
}

func (f *fleet) each(set func(*faultproxy.Proxy) *faultproxy.Fault) *faults {
	all := &faults{ends: f.ends}
	f.strike(func(p *faultproxy.Proxy) { all.each = append(all.each, set(p)) })
	return all
}

// Struck is closed when all have struck.
func (f *faults) Struck() <-chan struct{} { return f.all((*faultproxy.Fault).Struck) }

// Answered is closed when the store has begun to reply to all requests.
func (f *faults) Answered() <-chan struct{} { return f.all((*faultproxy.Fault).Answered) }

func (f *faults) all(of func(*faultproxy.Fault) <-chan struct{}) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		for _, one := range f.each {
			select {
			case <-of(one):
			case <-f.ends.Done():
				return
			}
		}
		close(done)
	}()
	return done
}

// Deliver delivers all requests that are held back.
func (f *faults) Deliver(ctx context.Context) error {
	errs := make(chan error, len(f.each))
	for _, one := range f.each {
		go func() { errs <- one.Deliver(ctx) }()
	}
	var all error
	for range f.each {
		all = errors.Join(all, <-errs)
	}
	return all
}
