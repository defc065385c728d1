package convert

import "github.com/beeline-lb/beeline/pkg/model"

const (
	// internLimit bounds what an Interner remembers. It is more than the nodes,
	// Services and zones of all but the largest clusters.
	internLimit = 16384
	// internLongest is the longest string that it remembers: 4 MiB in all.
	internLongest = maxName
)

// Interner keeps one copy of the strings that many slices share: the decoder
// allocates each anew. Those that are longer than any name are passed on. It serves
// one goroutine; the zero value is ready.
type Interner map[string]string

// String returns a string equal to v.
func (in *Interner) String(v string) string {
	if v == "" || len(v) > internLongest {
		return v
	}
	if kept, ok := (*in)[v]; ok {
		return kept
	}
	if *in == nil || len(*in) >= internLimit {
		*in = make(Interner)
	}
	(*in)[v] = v
	return v
}

// strings interns each of vs in place.
func (in *Interner) strings(vs []string) {
	for i := range vs {
		vs[i] = in.String(vs[i])
	}
}

// Slice interns in place the strings of a slice that no other goroutine has yet seen.
func (in *Interner) Slice(s *model.Slice) {
	if s == nil {
		return
	}
	s.Name.Namespace = in.String(s.Name.Namespace)
	for i := range s.Ports {
		s.Ports[i].Name = in.String(s.Ports[i].Name)
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		e.NodeName = in.String(e.NodeName)
		e.Zone = in.String(e.Zone)
		in.strings(e.NodeHints)
		in.strings(e.ZoneHints)
	}
}
