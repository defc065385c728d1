package kube

import "github.com/beeline-lb/beeline/pkg/model"

// internLimit bounds what an interner remembers. It is more than the nodes,
// Services and zones of all but the largest clusters.
const internLimit = 16384

// interner keeps one copy of the strings that many slices share: the decoder
// allocates each anew. It serves one goroutine; the zero value is ready.
type interner map[string]string

// string returns a string equal to v.
func (in *interner) string(v string) string {
	if v == "" {
		return ""
	}
	if kept, ok := (*in)[v]; ok {
		return kept
	}
	if *in == nil || len(*in) >= internLimit {
		*in = make(interner)
	}
	(*in)[v] = v
	return v
}

// strings interns each of vs in place.
func (in *interner) strings(vs []string) {
	for i := range vs {
		vs[i] = in.string(vs[i])
	}
}

// slice interns in place the strings of a slice that no other goroutine has yet seen.
func (in *interner) slice(s *model.Slice) {
	if s == nil {
		return
	}
	s.Name.Namespace = in.string(s.Name.Namespace)
	for i := range s.Ports {
		s.Ports[i].Name = in.string(s.Ports[i].Name)
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		e.NodeName = in.string(e.NodeName)
		e.Zone = in.string(e.Zone)
		in.strings(e.NodeHints)
		in.strings(e.ZoneHints)
	}
}
