package datapath

import (
	"sync"
	"weak"

	"github.com/cilium/ebpf/btf"
)

// held is what the kernel's types were read into last, as long as somebody uses it.
var held struct {
	mu    sync.Mutex
	types weak.Pointer[btf.Cache]
}

// kernelTypes returns the types of the kernel and its modules. They take milliseconds to read and
// megabytes to keep: they are shared, and read again once nobody holds them.
func kernelTypes() *btf.Cache {
	held.mu.Lock()
	defer held.mu.Unlock()
	types := held.types.Value()
	if types == nil {
		types = btf.NewCache()
		held.types = weak.Make(types)
	}
	return types
}
