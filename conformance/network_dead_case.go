package conformance

import (
	"fmt"
	"time"

	"github.com/dlock-go/dlock/internal/faultproxy"
)

// deadWaiterOverNetwork has waiters die that nobody cancels and nobody releases: their
// connections end with their process, or fall silent with their host. The store knows of
// the one, and finds out about the other: what the dead are granted then lasts for their
// TTL, which is short therefore.
func deadWaiterOverNetwork(s *scene) error {
	s.acquirer()
	silent := s.h.patience() / 3
	s.overNetworks(
		func(n *network) { n.waitersDie(1, long, "whose process was killed", n.Refuse) },
		func(n *network) { n.waitersDie(50, long, "whose process was killed", n.Refuse) },
		func(n *network) {
			n.waitersDie(1, silent, "whose host fell silent", func() { n.Block(faultproxy.Both) })
		},
	)
	return s.result()
}

// waitersDie has many wait over the network, and die before the key is released. Another
// waits behind them.
func (n *network) waitersDie(many int, ttl time.Duration, how string, die func()) {
	if !n.offers(n.via.inner.Locker, acquire) {
		n.skip("the Locker over the network is no Acquirer")
		return
	}
	g := n.grant(n.direct, n.key(), n.token("holder"), long)
	dead := make([]*waiter, many)
	for i := range dead {
		dead[i] = n.waitCtx(n.ctx, n.via, g.key, n.token("dead"), ttl)
	}
	n.gap()
	alive := n.scene.wait(n.direct, g.key, n.token("alive"), long)
	for _, w := range append(dead, alive) {
		n.waits(w)
	}
	die()
	n.gap()
	n.release(n.direct, g, true)
	n.served(alive, fmt.Sprintf("the holder released the key; before it came %d waiters of one client %s", many, how))
	n.release(n.direct, alive.grant, true)
	for _, w := range dead {
		w.cancel()
	}
}
