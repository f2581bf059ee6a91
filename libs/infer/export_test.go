package infer

// Words is how many words a set keeps for a gateway.
func (s *Recent) Words(origin uint64) int { return len(s.of[origin].words) }
