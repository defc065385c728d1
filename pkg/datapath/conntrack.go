package datapath

import "github.com/cilium/ebpf/btf"

// HaveConntrack reports whether programs can ask the kernel which connections it tracks:
// whether connection tracking is built in or loaded, and its types are known.
//
// The programs cannot find out by themselves: cilium/ebpf v0.22 does not know the address
// of a function of a module.
func HaveConntrack() bool {
	cache := kernelTypes()
	lookup.Lock()
	defer lookup.Unlock()
	for _, read := range []func() (*btf.Spec, error){
		cache.Kernel,
		func() (*btf.Spec, error) { return cache.Module("nf_conntrack") },
	} {
		var function *btf.Func
		if types, err := read(); err == nil && types.TypeByName("bpf_skb_ct_lookup", &function) == nil {
			return true
		}
	}
	return false
}
