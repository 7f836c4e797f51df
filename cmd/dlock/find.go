package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/token"
)

const (
	mostWaiters = 20 // that show names
	mostOthers  = 10 // locks under other prefixes that show shows
)

// scan returns the names of one type, such as string, that match a pattern, on all masters.
func (s *store) scan(ctx context.Context, kind, pattern string) (names []string, err error) {
	var mu sync.Mutex
	look := func(ctx context.Context, server redis.Cmdable) error {
		found := server.ScanType(ctx, 0, pattern, rediscore.ScanCount, kind).Iterator()
		for found.Next(ctx) {
			mu.Lock()
			names = append(names, found.Val())
			mu.Unlock()
		}
		return found.Err()
	}
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error { return look(ctx, master) })
	} else {
		err = look(ctx, s.client)
	}
	if err != nil {
		return nil, unanswered(err)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// queues returns the names of all queues, by the name of the lock in Redis. It has two if programs split that name at
// different places.
func (s *store) queues(ctx context.Context) (map[string][]string, error) {
	names, err := s.scan(ctx, "zset", rediscore.QueuePattern)
	queues := make(map[string][]string)
	for _, name := range names {
		if prefix, key, ok := rediscore.ParseQueue(name); ok {
			queues[prefix+key] = append(queues[prefix+key], name)
		}
	}
	return queues, err
}

// count counts the waiters of rows. Without the right to ZCARD, it leaves them.
func (s *store) count(ctx context.Context, rows []row, queues map[string][]string) {
	counts := make(map[int][]*redis.IntCmd)
	_, _ = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, r := range rows {
			for _, queue := range queues[s.name(r)] {
				counts[i] = append(counts[i], p.ZCard(ctx, queue))
			}
		}
		return nil
	})
	for i, all := range counts {
		waiting := 0
		for _, c := range all {
			waiting += int(c.Val())
		}
		rows[i].Waiting = max(rows[i].Waiting, waiting)
	}
}

// name is that of a lock in Redis.
func (s *store) name(r row) string {
	if r.Prefix != nil {
		return *r.Prefix + r.Key
	}
	return s.prefix + r.Key
}

// about returns what is to be known of a lock: itself, or those of the same name under other prefixes if it is free and
// there are any, with who waits; and the last marks of package once. More is how many others are left out.
func (s *store) about(ctx context.Context, r row) (rows []row, more int, err error) {
	rows = []row{r}
	if !r.Held {
		others, err := s.others(ctx, r.Key)
		if err != nil {
			return rows, 0, err
		}
		if more = max(0, len(others)-mostOthers); len(others) > 0 {
			rows = others[:len(others)-more]
		}
	}
	queues, err := s.queues(ctx)
	if err != nil {
		return rows, more, err
	}
	s.count(ctx, rows, queues)
	for i, r := range rows {
		for _, queue := range queues[s.name(r)] {
			for _, t := range s.client.ZRange(ctx, queue, 0, mostWaiters-1).Val() { // none without the right to
				owner, since := token.Parse(t)
				rows[i].Waiters = append(rows[i].Waiters, waiter{owner, since})
			}
		}
	}
	marks, err := s.held(ctx, r.Key+"@", false)
	return append(rows, marks[max(0, len(marks)-10):]...), more, err
}

// others returns the locks whose names in Redis end with a key, and then the marks of package once with such names, the
// last first.
func (s *store) others(ctx context.Context, key string) ([]row, error) {
	names, err := s.scan(ctx, "string", "*"+rediscore.Literally(key)+"*")
	if err != nil {
		return nil, err
	}
	begins := func(name string) int { // the key of the lock or of the mark, or -1
		if strings.HasSuffix(name, key) {
			return len(name) - len(key)
		}
		return strings.LastIndex(name, key+"@")
	}
	names = slices.DeleteFunc(names, func(name string) bool { return begins(name) < 0 })
	locker := newLocker(s.client, "")
	defer locker.Close()
	rows, err := inspect(ctx, locker, names, false)
	for i, r := range rows {
		prefix := r.Key[:begins(r.Key)]
		rows[i].Prefix, rows[i].Key = &prefix, r.Key[len(prefix):]
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(len(a.Key)-len(b.Key), strings.Compare(b.Key, a.Key))
	})
	return rows, err
}

// unheld says what was looked at, unless a key is held under the prefix.
func (s *store) unheld(key string, rows []row, more int, failed error) string {
	r := rows[0]
	switch name := s.prefix + key; {
	case r.Prefix != nil:
		text := fmt.Sprintf("There is no key %q. These locks are under other prefixes: add --prefix %q.\n", name, *r.Prefix)
		if more > 0 {
			text += fmt.Sprintf("%d more are not shown.\n", more)
		}
		return text
	case r.Held:
		return ""
	case failed != nil:
		return fmt.Sprintf("There is no key %q, %d wait. Other prefixes were not looked at.\n", name, r.Waiting)
	default:
		return fmt.Sprintf("%s is free, %d wait: there is no key %q, and no lock under another prefix.\n", printable(r.Key), r.Waiting, name)
	}
}
