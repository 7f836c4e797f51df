package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A command is what a server can do.
type command struct {
	do    func(s *Server, args []string) (any, error)
	least int  // how many arguments it takes, at least
	write bool // it may change the data
	grows bool // it may take memory
	sent  bool // replicas repeat it, whatever it replies. Others are repeated unless they reply 0
}

// commands are those that the scripts use, and some for tests.
var commands = map[string]command{
	"TIME":     {do: (*Server).time},
	"INFO":     {do: (*Server).info},
	"EXISTS":   {do: (*Server).exists, least: 1},
	"DEL":      {do: (*Server).del, least: 1, write: true},
	"PTTL":     {do: (*Server).pTTL, least: 1},
	"PEXPIRE":  {do: (*Server).pExpire, least: 2, write: true},
	"PERSIST":  {do: (*Server).persist, least: 1, write: true},
	"RENAMENX": {do: (*Server).renameNX, least: 2, write: true},
	"TYPE":     {do: (*Server).typeOf, least: 1},

	"GET": {do: (*Server).getString, least: 1},
	"SET": {do: (*Server).set, least: 2, write: true, grows: true, sent: true},

	"HSET":    {do: (*Server).hSet, least: 3, write: true, grows: true, sent: true},
	"HMGET":   {do: (*Server).hMGet, least: 2},
	"HGETALL": {do: (*Server).hGetAll, least: 1},
	"HLEN":    {do: (*Server).hLen, least: 1},
	"HDEL":    {do: (*Server).hDel, least: 2, write: true},

	"ZADD":            {do: (*Server).zAdd, least: 3, write: true, grows: true},
	"ZCARD":           {do: (*Server).zCard, least: 1},
	"ZRANGE":          {do: (*Server).zRange, least: 3},
	"ZRANK":           {do: (*Server).zRank, least: 2},
	"ZREM":            {do: (*Server).zRem, least: 2, write: true},
	"ZREMRANGEBYRANK": {do: (*Server).zRemRangeByRank, least: 3, write: true},
	"ZSCORE":          {do: (*Server).zScore, least: 2},

	"PUBLISH":  {do: func(s *Server, args []string) (any, error) { return s.publish(args, false) }, least: 2},
	"SPUBLISH": {do: func(s *Server, args []string) (any, error) { return s.publish(args, true) }, least: 2},
	"PUBSUB":   {do: (*Server).pubSub, least: 1},
}

const (
	errWrongType  = Error("WRONGTYPE Operation against a key holding the wrong kind of value")
	errArguments  = Error("ERR Wrong number of args calling Redis command from script")
	errUnknown    = Error("ERR Unknown Redis command called from script")
	errNotInteger = Error("ERR value is not an integer or out of range")
	errNotFloat   = Error("ERR value is not a valid float")
	errFull       = Error("OOM command not allowed when used memory > 'maxmemory'.")
	errNoKey      = Error("ERR no such key")
	errSyntax     = Error("ERR syntax error")
)

// execute executes a command, unless the server refuses it.
func (s *Server) execute(args []string) (any, error) {
	s.cost.Commands++
	name := strings.ToUpper(args[0])
	s.cost.Calls[name]++
	c, known := commands[name]
	switch args = args[1:]; {
	case !known:
		return nil, errUnknown
	case len(args) < c.least:
		return nil, errArguments
	case s.faults.Commands[name] != "":
		return nil, Error(s.faults.Commands[name])
	case c.write && s.faults.Writes != "":
		return nil, Error(s.faults.Writes)
	case c.write && s.master != nil:
		return nil, errReadOnly
	case c.grows && s.faults.Full && !s.wrote:
		return nil, errFull
	case s.script && s.cluster != nil && !s.local(name, args):
		return nil, errNotLocal
	}
	s.wrote, s.moved = s.wrote || c.write, false
	reply, err := c.do(s, args)
	if err == nil && (c.sent || s.moved || c.write && reply != any(int64(0))) {
		s.record(func(r *Server) { c.do(r, args) })
	}
	return reply, err
}

func (s *Server) time([]string) (any, error) {
	t := s.now().UnixMicro()
	return []any{strconv.FormatInt(t/1e6, 10), strconv.FormatInt(t%1e6, 10)}, nil
}

func (s *Server) info([]string) (any, error) {
	role := "master"
	if s.master != nil {
		role = "slave"
	}
	return fmt.Sprintf("# Replication\r\nrole:%s\r\nconnected_slaves:%d\r\nmaster_replid:%s\r\nmaster_replid2:%040s\r\nmaster_repl_offset:%d\r\n",
		role, len(s.replicas), s.replID, s.replID2, s.offset), nil
}

func (s *Server) exists(keys []string) (any, error) {
	n := int64(0)
	for _, key := range keys {
		if s.get(key) != nil {
			n++
		}
	}
	return n, nil
}

func (s *Server) del(keys []string) (any, error) {
	n := int64(0)
	for _, key := range keys {
		if s.get(key) != nil {
			delete(s.data, key)
			n++
		}
	}
	return n, nil
}

func (s *Server) pTTL(args []string) (any, error) {
	switch e := s.get(args[0]); {
	case e == nil:
		return int64(-2), nil
	case e.expires == never:
		return int64(-1), nil
	default:
		return max(e.expires-s.now().UnixMilli(), 0), nil
	}
}

func (s *Server) pExpire(args []string) (any, error) {
	ms, err := integer(args[1])
	e := s.get(args[0])
	switch {
	case err != nil:
		return nil, err
	case e == nil:
		return int64(0), nil
	case ms <= 0:
		delete(s.data, args[0])
	default:
		e.expires = s.now().UnixMilli() + ms
	}
	return int64(1), nil
}

func (s *Server) persist(args []string) (any, error) {
	e := s.get(args[0])
	if e == nil || e.expires == never {
		return int64(0), nil
	}
	e.expires = never
	return int64(1), nil
}

func (s *Server) renameNX(args []string) (any, error) {
	e := s.get(args[0])
	switch {
	case e == nil:
		return nil, errNoKey
	case s.get(args[1]) != nil: // also if both are the same
		return int64(0), nil
	}
	delete(s.data, args[0])
	s.data[args[1]] = e
	return int64(1), nil
}

func (s *Server) typeOf(args []string) (any, error) {
	e := s.get(args[0])
	if e == nil {
		return status("none"), nil
	}
	switch e.value.(type) {
	case string:
		return status("string"), nil
	case map[string]string:
		return status("hash"), nil
	}
	return status("zset"), nil
}

func (s *Server) getString(args []string) (any, error) {
	e := s.get(args[0])
	if e == nil {
		return nil, nil
	}
	if v, ok := e.value.(string); ok {
		return v, nil
	}
	return nil, errWrongType
}

// set takes no option but PX.
func (s *Server) set(args []string) (any, error) {
	e := &entry{value: args[1], expires: never}
	switch {
	case len(args) == 2:
	case len(args) != 4 || !strings.EqualFold(args[2], "PX"):
		return nil, errSyntax
	default:
		ms, err := integer(args[3])
		if err != nil {
			return nil, err
		}
		if ms <= 0 {
			return nil, Error("ERR invalid expire time in 'set' command")
		}
		e.expires = s.now().UnixMilli() + ms
	}
	s.data[args[0]] = e
	return status("OK"), nil
}

func (s *Server) hSet(args []string) (any, error) {
	if len(args)%2 == 0 {
		return nil, Error("ERR wrong number of arguments for 'hset' command")
	}
	h, err := kept(s, args[0], func() map[string]string { return make(map[string]string) })
	if err != nil {
		return nil, err
	}
	n := int64(0)
	for i := 1; i < len(args); i += 2 {
		if _, ok := h[args[i]]; !ok {
			n++
		}
		h[args[i]] = args[i+1]
	}
	return n, nil
}

func (s *Server) hMGet(args []string) (any, error) {
	h, err := kept[map[string]string](s, args[0], nil)
	all := make([]any, len(args)-1)
	for i, field := range args[1:] {
		if v, ok := h[field]; ok {
			all[i] = v
		}
	}
	return all, err
}

func (s *Server) hGetAll(args []string) (any, error) {
	h, err := kept[map[string]string](s, args[0], nil)
	all := []any{}
	for _, field := range slices.Sorted(maps.Keys(h)) {
		all = append(all, field, h[field])
	}
	return all, err
}

func (s *Server) hLen(args []string) (any, error) {
	h, err := kept[map[string]string](s, args[0], nil)
	return int64(len(h)), err
}

func (s *Server) hDel(args []string) (any, error) {
	h, err := kept[map[string]string](s, args[0], nil)
	if err != nil {
		return nil, err
	}
	n := int64(0)
	for _, field := range args[1:] {
		if _, ok := h[field]; ok {
			delete(h, field)
			n++
		}
	}
	if len(h) == 0 {
		delete(s.data, args[0])
	}
	return n, nil
}

// zAdd takes one member, and no option but XX.
func (s *Server) zAdd(args []string) (any, error) {
	key, args := args[0], args[1:]
	xx := strings.EqualFold(args[0], "XX")
	if xx {
		args = args[1:]
	}
	if len(args) != 2 {
		return nil, errSyntax
	}
	score, err := strconv.ParseFloat(args[0], 64)
	if err != nil || math.IsNaN(score) {
		return nil, errNotFloat
	}
	z, err := kept(s, key, newZset)
	if err != nil {
		return nil, err
	}
	old, known := z.scores[args[1]]
	if known || !xx {
		s.moved = known && old != score
		z.add(score, args[1])
	}
	s.drop(key, z)
	return int64(one(!known && !xx)), nil
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func (s *Server) zCard(args []string) (any, error) {
	z, err := s.zset(args[0])
	return int64(len(z.members)), err
}

func (s *Server) zRange(args []string) (any, error) {
	first, last, err := ranks(args[1:])
	if err != nil {
		return nil, err
	}
	z, err := s.zset(args[0])
	all := []any{}
	for _, m := range z.slice(first, last) {
		if all = append(all, m); len(args) > 3 {
			all = append(all, score(z.scores[m]))
		}
	}
	return all, err
}

// ranks are the first two arguments.
func ranks(args []string) (first, last int64, err error) {
	if first, err = integer(args[0]); err == nil {
		last, err = integer(args[1])
	}
	return first, last, err
}

func (s *Server) zRank(args []string) (any, error) {
	z, err := s.zset(args[0])
	if _, ok := z.scores[args[1]]; !ok || err != nil {
		return nil, err
	}
	return int64(z.rank(args[1])), nil
}

func (s *Server) zRem(args []string) (any, error) {
	z, err := s.zset(args[0])
	n := int64(0)
	for _, m := range args[1:] {
		n += int64(one(z.remove(m)))
	}
	s.drop(args[0], z)
	return n, err
}

func (s *Server) zRemRangeByRank(args []string) (any, error) {
	first, last, err := ranks(args[1:])
	if err != nil {
		return nil, err
	}
	z, err := s.zset(args[0])
	members := z.slice(first, last)
	n := int64(len(members))
	for _, m := range members {
		delete(z.scores, m)
	}
	if n > 0 {
		i := slices.Index(z.members, members[0])
		z.members = slices.Delete(z.members, i, i+len(members))
	}
	s.drop(args[0], z)
	return n, err
}

func (s *Server) zScore(args []string) (any, error) {
	z, err := s.zset(args[0])
	v, ok := z.scores[args[1]]
	if !ok || err != nil {
		return nil, err
	}
	return score(v), nil
}

// publish also reaches the subscribers at replicas, behind the writes before. In a cluster, messages travel by
// themselves, to all nodes or, of a shard channel, to the replicas.
func (s *Server) publish(args []string, shard bool) (any, error) {
	deliver := func(s *Server) {
		for _, sub := range s.inboxes[channel{args[0], shard}] {
			sub.add(args[1])
		}
	}
	deliver(s)
	if s.cluster == nil {
		s.record(deliver)
	} else {
		for _, other := range s.cluster.Nodes {
			if other != s && (!shard || other.master == s) {
				deliver(other)
			}
		}
	}
	return int64(len(s.inboxes[channel{args[0], shard}])), nil
}

func (s *Server) pubSub(args []string) (any, error) {
	shard := strings.EqualFold(args[0], "SHARDNUMSUB")
	if !shard && !strings.EqualFold(args[0], "NUMSUB") {
		return nil, Error(fmt.Sprintf("ERR Unknown PUBSUB subcommand or wrong number of arguments for '%s'", args[0]))
	}
	all := []any{}
	for _, name := range args[1:] {
		all = append(all, name, int64(len(s.inboxes[channel{name, shard}])))
	}
	return all, nil
}
