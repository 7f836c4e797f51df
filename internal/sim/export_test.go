package sim

// EvalAsking is Eval after ASKING.
func (s *Server) EvalAsking(source, sha string, keys, args []string) (any, error) {
	reply, _, err := s.eval(source, sha, keys, args, true)
	return reply, err
}

// Waits reports whether a WAIT goes on.
func (s *Server) Waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed != nil
}
