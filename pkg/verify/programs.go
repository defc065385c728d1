package verify

import (
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/setup"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// lookAtPrograms looks at what is attached, and at the choice of devices.
func (c *Checker) lookAtPrograms() (list []Finding, err error) {
	if c.noSettings != nil {
		return nil, c.noSettings
	}
	o := setup.Datapath(c.settings, statusmap.New(c.maps).Agent().Cgroup)
	if local := c.state.All().LocalNode; local != nil {
		o.NodeAddrs = model.PreferAddrs(o.NodeAddrs, local.Addrs)
	}
	problems, err := datapath.Problems(c.opts.BPFFS, c.maps, o)
	for _, p := range problems {
		list = append(list, Finding{Part: Programs, Kind: p.Kind, What: p.Text})
	}
	return list, err
}
