package sim

import (
	"maps"
	"slices"
	"sort"
	"strconv"
)

// An entry is the value of a key: a string, a map[string]string or a *zset.
type entry struct {
	value   any
	expires int64 // in Unix milliseconds
}

const never = 0

// get returns nil if there is no such key, or no longer. A replica then keeps it until the master has
// removed it.
func (s *Server) get(key string) *entry {
	e := s.data[key]
	if e == nil || e.expires == never || s.now().UnixMilli() <= e.expires {
		return e
	}
	if s.master == nil {
		s.put(key, nil)
	}
	return nil
}

// put replaces the value of a key, or removes the key if e is nil. The replicas do so too.
func (s *Server) put(key string, e *entry) {
	repeat := func(s *Server) {
		if e == nil {
			delete(s.data, key)
		} else {
			s.data[key] = e.clone()
		}
	}
	repeat(s)
	s.record(repeat)
}

func (e *entry) clone() *entry {
	c := *e
	switch v := e.value.(type) {
	case map[string]string:
		c.value = maps.Clone(v)
	case *zset:
		c.value = &zset{maps.Clone(v.scores), slices.Clone(v.members)}
	}
	return &c
}

func cloned(data map[string]*entry) map[string]*entry {
	c := make(map[string]*entry, len(data))
	for key, e := range data {
		c[key] = e.clone()
	}
	return c
}

// kept returns the value of a key. Without such a key it is what create returns, which is kept, or
// the zero value if create is nil.
func kept[T any](s *Server, key string, create func() T) (v T, err error) {
	e := s.get(key)
	if e == nil {
		if create == nil {
			return v, nil
		}
		e = &entry{value: create(), expires: never}
		s.data[key] = e
	}
	v, ok := e.value.(T)
	if !ok {
		return v, errWrongType
	}
	return v, nil
}

// zset returns the sorted set of a key, or an empty one that is not kept.
func (s *Server) zset(key string) (*zset, error) {
	z, err := kept[*zset](s, key, nil)
	if z == nil {
		z = newZset()
	}
	return z, err
}

// drop removes a key whose sorted set is empty.
func (s *Server) drop(key string, z *zset) {
	if e := s.data[key]; e != nil && e.value == any(z) && len(z.members) == 0 {
		delete(s.data, key)
	}
}

// A zset is a sorted set.
type zset struct {
	scores  map[string]float64
	members []string // by score, then by name
}

func newZset() *zset { return &zset{scores: make(map[string]float64)} }

func (z *zset) less(a, b string) bool {
	if z.scores[a] != z.scores[b] {
		return z.scores[a] < z.scores[b]
	}
	return a < b
}

// rank is the index of a member, or where it would be.
func (z *zset) rank(m string) int {
	return sort.Search(len(z.members), func(i int) bool { return !z.less(z.members[i], m) })
}

func (z *zset) add(score float64, m string) {
	z.remove(m)
	z.scores[m] = score
	z.members = slices.Insert(z.members, z.rank(m), m)
}

func (z *zset) remove(m string) bool {
	if _, ok := z.scores[m]; !ok {
		return false
	}
	i := z.rank(m)
	z.members = slices.Delete(z.members, i, i+1)
	delete(z.scores, m)
	return true
}

// slice returns the members between two ranks, both included. Negative ones count from the end.
func (z *zset) slice(first, last int64) []string {
	n := int64(len(z.members))
	if first < 0 {
		first = max(first+n, 0)
	}
	if last < 0 {
		last += n
	}
	if last = min(last, n-1); first > last {
		return nil
	}
	return z.members[first : last+1]
}

func integer(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != text {
		return 0, errNotInteger
	}
	return n, nil
}

// score is a score as a text.
func score(v float64) string { return strconv.FormatFloat(v, 'g', 17, 64) }
