package servicemap

import (
	"errors"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// Families reports whether there are frontends of IPv4 and of IPv6.
func (t Table) Families() (has [2]bool, err error) {
	err = bpfmap.Each(t.maps.BlFrontend, func(key *bpf.SockBlFrontendKey, _ *bpf.SockBlFrontendEntry) {
		family := 1
		if frontendKeyOf(key).Addr.Is4() {
			family = 0
		}
		has[family] = true
	})
	return has, err
}

// ForgetFrontends leaves all new connections to another proxy: no address belongs
// to a Service any more. Flows and sockets that are connected already stay as they
// are. What refuses connections to other addresses goes first, so that none is
// refused that is served.
func (t Table) ForgetFrontends() error {
	var cidrs []bpf.SockBlCidrKey
	var refusing, others []bpf.SockBlFrontendKey
	err := errors.Join(
		bpfmap.Each(t.maps.BlServiceCidr, func(key *bpf.SockBlCidrKey, _ *uint32) { cidrs = append(cidrs, *key) }),
		bpfmap.Each(t.maps.BlFrontend, func(key *bpf.SockBlFrontendKey, value *bpf.SockBlFrontendEntry) {
			if key.Port == 0 {
				refusing = append(refusing, *key)
			} else {
				others = append(others, *key)
			}
		}))
	if err != nil {
		return err
	}
	for _, key := range cidrs {
		if err := bpfmap.Remove(t.maps.BlServiceCidr, &key); err != nil {
			return err
		}
	}
	for _, key := range append(refusing, others...) {
		if err := bpfmap.Remove(t.maps.BlFrontend, &key); err != nil {
			return err
		}
	}
	return nil
}
