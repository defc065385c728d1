package verify

import (
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/setup"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// lookAtPrograms looks at what is attached, and at the choice of devices.
func (c *Checker) lookAtPrograms() ([]Finding, error) {
	if c.noSettings != nil {
		return nil, c.noSettings
	}
	o := setup.Datapath(c.settings, statusmap.New(c.maps).Agent().Cgroup)
	o.PodsOfNodes = c.podsOfNodes
	if local := c.state.All().LocalNode; local != nil {
		o.NodeAddrs = model.PreferAddrs(o.NodeAddrs, local.Addrs)
		if o.Internal.OfNode {
			o.OwnPods = local.PodRanges
		}
	}
	problems, err := datapath.Problems(c.opts.BPFFS, c.maps, o)
	return ofPrograms(problems), err
}

// mostCgroups bounds the walk over cgroups. A node with 250 pods has about 1,000.
const mostCgroups = 10000

// lookBelow looks for programs of others in cgroups below the one that is served.
func (c *Checker) lookBelow() ([]Finding, error) {
	problems, err := datapath.ForeignBelow(statusmap.New(c.maps).Agent().Cgroup, mostCgroups)
	return ofPrograms(problems), err
}

// ofPrograms returns problems as findings.
func ofPrograms(problems []datapath.Problem) (list []Finding) {
	for _, p := range problems {
		f := Finding{Part: Programs, Kind: p.Kind, What: p.Text}
		if p.Kind == "pod-range" { // the source tells of it
			f.Part, f.any = Tables, true
		}
		list = append(list, f)
	}
	return list
}
