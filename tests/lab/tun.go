package lab

import (
	"os"
	"time"

	"github.com/beeline-lb/beeline/tests/tun"
)

// AddTUN connects two namespaces by devices of one name whose packets have no Ethernet header, until
// the test ends. A packet takes delay on its way.
func (n *Namespace) AddTUN(name string, peer *Namespace, delay time.Duration) {
	n.t.Helper()
	var ends [2]*os.File
	for i, at := range []*Namespace{n, peer} {
		at.must("add device "+name, func() (err error) {
			ends[i], err = tun.New(name)
			return err
		})
	}
	n.t.Cleanup(tun.Connect(ends, delay))
}
