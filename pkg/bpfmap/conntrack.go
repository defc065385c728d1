package bpfmap

import (
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/btf"
)

// untrackedFor is how long the programs take it that nothing is tracked.
const untrackedFor = 3 * time.Second

// SetTracking tells the programs whether netfilter tracks connections in the node's
// network namespace. They take it that there are some unless told otherwise within the
// last two seconds. It may be called beside all other methods.
func (m *Maps) SetTracking(some bool) error {
	until := uint32(0)
	if !some {
		now, err := Clock()
		if err != nil {
			return err
		}
		until = uint32((now + untrackedFor) / time.Second)
	}
	atomic.StoreUint32(&m.Entries.Tracking.NoneUntil, until)
	return nil
}

// haveConntrack reports whether programs can ask the kernel which connections it tracks:
// whether connection tracking is built in or loaded, and its types are known.
//
// The programs cannot find out by themselves: cilium/ebpf v0.22 does not know the address
// of a function of a module.
func haveConntrack() bool {
	for _, load := range []func() (*btf.Spec, error){
		btf.LoadKernelSpec,
		func() (*btf.Spec, error) { return btf.LoadKernelModuleSpec("nf_conntrack") },
	} {
		var lookup *btf.Func
		if types, err := load(); err == nil && types.TypeByName("bpf_skb_ct_lookup", &lookup) == nil {
			return true
		}
	}
	return false
}
