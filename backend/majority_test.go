package backend_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A majority of servers passes the suite, with each library and with all of them. Leases are not
// lost on all servers at once, so the cases of that are left to the nodes in memory.
func TestMajority(t *testing.T) {
	if os.Getenv("DLOCK_MAJORITY") == "" {
		t.Skip("DLOCK_MAJORITY is not set")
	}
	for _, bed := range []struct {
		name    string
		servers int
		library func(node int) connect
	}{
		{"goredis", 3, func(int) connect { return connectGoRedis }},
		{"rueidis", 3, func(int) connect { return connectRueidis }},
		{"redigo", 5, func(int) connect { return connectRedigo }},
		{"mixed", 5, func(node int) connect { return adapters[node%len(adapters)].connect }},
	} {
		t.Run(bed.name, func(t *testing.T) {
			servers := make([]*redistest.Server, bed.servers)
			addrs := make([]string, len(servers))
			for i := range servers {
				servers[i] = redistest.Start(t)
				addrs[i] = servers[i].Addr()
			}
			dial := func(t *testing.T, addrs []string) dlock.Locker {
				nodes := make([]dlock.Locker, len(addrs))
				for i, addr := range addrs {
					node := bed.library(i).dial(t, addr)
					t.Cleanup(func() { require.NoError(t, node.Close()) })
					nodes[i] = node
				}
				l := redlock.New(nodes, redlock.WithoutGuard())
				t.Cleanup(func() { require.NoError(t, l.Close()) })
				return l
			}
			conformance.Run(t, conformance.Harness{
				New:       func(t *testing.T) dlock.Locker { return dial(t, addrs) },
				DialAll:   dial,
				Addrs:     addrs,
				Unordered: true,
				Scattered: true,
				Grace:     250 * time.Millisecond, // a busy server may execute a renewal so late
			})
		})
	}
}

// While a minority of the servers is behind a network that fails, calls succeed. A reply that is
// lost is one of them.
func TestMinorityOfNetworks(t *testing.T) {
	const servers, minority = 5, 2
	var nodes []dlock.Locker
	var proxies []*faultproxy.Proxy
	for i := range servers {
		p, err := faultproxy.New(redistest.Start(t).Addr())
		require.NoError(t, err)
		t.Cleanup(p.Close)
		proxies = append(proxies, p)
		node := adapters[i%len(adapters)].dial(t, p.Addr())
		t.Cleanup(func() { require.NoError(t, node.Close()) })
		nodes = append(nodes, node)
	}
	l := redlock.New(nodes, redlock.WithoutGuard())
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	for _, fault := range []struct {
		name   string
		strike func(p *faultproxy.Proxy, key string)
	}{
		{"none", func(*faultproxy.Proxy, string) {}},
		{"cut", func(p *faultproxy.Proxy, _ string) { p.Cut() }},
		{"reply lost", func(p *faultproxy.Proxy, key string) { p.DropReply(faultproxy.Contains(key), faultproxy.Cut) }},
		{"request lost", func(p *faultproxy.Proxy, key string) { p.DropRequest(faultproxy.Contains(key), faultproxy.Cut) }},
		{"slow", func(p *faultproxy.Proxy, _ string) {
			p.Slow(faultproxy.ToClient, faultproxy.Pace{Latency: 500 * time.Millisecond})
		}},
		{"refused", func(p *faultproxy.Proxy, _ string) { p.Refuse() }},
		{"silent", func(p *faultproxy.Proxy, _ string) { p.Block(faultproxy.Both) }},
	} {
		for n := 1; n <= minority; n++ {
			key := fmt.Sprintf("%s at %d", fault.name, n)
			strike := func() {
				for _, p := range proxies[:n] {
					fault.strike(p, key)
				}
			}
			strike()
			a, err := l.TryAcquire(t.Context(), key, "holder", time.Minute)
			require.True(t, a.Acquired && err == nil, "%s: TryAcquire: %+v, %v", key, a, err)
			strike()
			held, err := l.Renew(t.Context(), key, "holder", time.Minute)
			require.True(t, held && err == nil, "%s: Renew: %v, %v", key, held, err)
			strike()
			other, err := l.TryAcquire(t.Context(), key, "other", time.Minute)
			require.True(t, other.Holder == "holder" && err == nil, "%s: TryAcquire of another: %+v, %v", key, other, err)
			strike()
			held, err = l.Release(t.Context(), key, "holder")
			require.True(t, held && err == nil, "%s: Release: %v, %v", key, held, err)
			for _, p := range proxies[:n] {
				require.NoError(t, p.Heal())
			}
		}
	}
}
