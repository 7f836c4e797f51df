package conformance

import (
	"time"

	"github.com/dlock-go/dlock/internal/faultproxy"
)

// A line is the connection of one worker to the store, where the harness lets
// the suite stand between.
type line interface {
	// silence passes nothing on until d has passed, and then cuts the
	// connection: what was not passed on is lost.
	silence(d time.Duration)

	// Close ends the line and all that it has started.
	Close()
}

// lineTo returns a client of the store, and the line to it if that is wanted and
// possible.
func (s *scene) lineTo(wanted bool) (*client, line, error) {
	if !wanted || s.h.Dial == nil || s.h.Addr == "" {
		return s.client(), nil, nil
	}
	p, err := faultproxy.New(s.h.Addr)
	if err != nil {
		return s.client(), nil, err
	}
	return s.clientOf(s.h.Dial(s.t, p.Addr()), "Harness.Dial"), proxyLine{p}, nil
}

// proxyLine makes a line of a proxy.
type proxyLine struct{ *faultproxy.Proxy }

func (p proxyLine) silence(d time.Duration) {
	p.Block(faultproxy.Both)
	time.Sleep(d)
	p.Cut()
	_ = p.Heal() // can only fail where connections were refused
}
