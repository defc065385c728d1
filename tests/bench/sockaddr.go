package main

import (
	"math/rand/v2"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/model"
)

// destinations is how many addresses a batch cycles through: as many as a Service
// has endpoints, so that the kernel meets as many without Beeline.
const destinations = 10

// sockaddr is an address as the kernel takes it.
type sockaddr struct {
	raw [unix.SizeofSockaddrInet6]byte
	len uintptr
}

func newSockaddr(addr netip.Addr, port uint16) sockaddr {
	var s sockaddr
	if addr.Is4() {
		s.len = unix.SizeofSockaddrInet4
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.raw))
		sa.Family, sa.Addr = unix.AF_INET, addr.As4()
	} else {
		s.len = unix.SizeofSockaddrInet6
		sa := (*unix.RawSockaddrInet6)(unsafe.Pointer(&s.raw))
		sa.Family, sa.Addr = unix.AF_INET6, addr.As16()
	}
	s.raw[2], s.raw[3] = byte(port>>8), byte(port)
	return s
}

// targets are the addresses that a batch cycles through.
type targets [destinations]sockaddr

func toService(l load, i int, family model.Family) *targets {
	var t targets
	for e := range t {
		t[e] = newSockaddr(l.clusterIP(i, family), servicePort)
	}
	return &t
}

func toEndpoints(l load, i int, family model.Family) *targets {
	var t targets
	for e := range t {
		t[e] = newSockaddr(l.endpoint(i, e, family), endpointPort)
	}
	return &t
}

func toOne(addr netip.Addr, port uint16) *targets {
	var t targets
	for e := range t {
		t[e] = newSockaddr(addr, port)
	}
	return &t
}

// toOutside returns an address that is no Service.
func toOutside(family model.Family) *targets {
	if family == model.IPv4 {
		return toOne(nth(outside4, 7), 53)
	}
	return toOne(nth(outside6, 7), 53)
}

// picker is a quick generator of random numbers (xorshift).
type picker uint32

func newPicker() picker { return picker(rand.Uint32() | 1) }

func (p *picker) from(t *targets) *sockaddr {
	*p ^= *p << 13
	*p ^= *p >> 17
	*p ^= *p << 5
	return &t[uint64(*p)*destinations>>32]
}

func domain(family model.Family) int {
	if family == model.IPv4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
