package devicemap

import "github.com/beeline-lb/beeline/pkg/bpfmap"

// Sandboxes are the devices of pods whose sockets the kernel does not see, as those of a sandbox or a
// virtual machine, at which their packets are served.
type Sandboxes struct{ maps *bpfmap.Maps }

// NewSandboxes returns what reads and writes them.
func NewSandboxes(m *bpfmap.Maps) Sandboxes { return Sandboxes{m} }

// Max is how many devices are noted.
func (s Sandboxes) Max() int { return int(s.maps.BlSandbox.MaxEntries()) }

// List returns their indexes.
func (s Sandboxes) List() (map[int]bool, error) {
	list := make(map[int]bool)
	err := bpfmap.Each(s.maps.BlSandbox, func(ifindex, _ *uint32) { list[int(*ifindex)] = true })
	return list, err
}

// Add adds a device. Programs do not tell of its packets any more.
func (s Sandboxes) Add(ifindex int) error {
	return bpfmap.Put(s.maps.BlSandbox, uint32(ifindex), new(uint32))
}

// Remove takes a device out.
func (s Sandboxes) Remove(ifindex int) error {
	return bpfmap.Remove(s.maps.BlSandbox, uint32(ifindex))
}
