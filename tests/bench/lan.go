package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// The addresses of the network that clients reach nodes over, and of each node's
// pod.
var (
	lanRange   = netip.MustParsePrefix("10.50.0.0/16")
	lanClient  = netip.MustParsePrefix("10.50.0.10/16")
	lanFar     = netip.MustParsePrefix("10.50.0.20/16")
	podGateway = netip.MustParsePrefix("10.51.0.1/24")
	podAddr    = netip.MustParsePrefix("10.51.0.10/24")
)

// lanNode returns the address of node i.
func lanNode(i int) netip.Prefix {
	return netip.PrefixFrom(nth(lanRange, 1<<8+i), lanRange.Bits())
}

// lan is a client, nodes and a machine beside them that serves, on one bridge of
// this namespace. Every node has a pod of its own, at the same address.
//
//	client ─┬─ node ── pod
//	        ├─ node ── pod
//	        └─ far
type lan struct {
	client *host
	nodes  []*host
	// pods and far count what is accepted.
	pods    []*acceptor
	far     *acceptor
	farHost *host
}

func newLAN(nodes int) (*lan, error) {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "lan"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return nil, fmt.Errorf("add a bridge: %w", err)
	}
	if err := setUp(bridge.Name); err != nil {
		return nil, err
	}
	far, err := newHost()
	if err != nil {
		return nil, err
	}
	l := &lan{farHost: far}
	if l.client, err = newHost(); err != nil {
		return nil, err
	}
	if err := errors.Join(l.client.plug(bridge, "uplink", lanClient), far.plug(bridge, "uplink", lanFar)); err != nil {
		return nil, err
	}
	for i := range nodes {
		if err := l.addNode(bridge, i); err != nil {
			return nil, fmt.Errorf("node %d: %w", i, err)
		}
	}
	l.far, err = far.accept()
	return l, errors.Join(err, l.client.do(tuneTCP))
}

func (l *lan) addNode(bridge netlink.Link, i int) error {
	node, pod, err := newNode(bridge, i)
	if err != nil {
		return err
	}
	server, err := pod.accept()
	l.nodes, l.pods = append(l.nodes, node), append(l.pods, server)
	return err
}

func newNode(bridge netlink.Link, i int) (node, pod *host, err error) {
	if node, err = newHost(); err != nil {
		return nil, nil, err
	}
	if err := node.do(forwardQuietly); err != nil {
		return nil, nil, err
	}
	if err := node.plug(bridge, "uplink", lanNode(i)); err != nil {
		return nil, nil, err
	}
	pod, err = node.addPod("pod", podGateway, podAddr)
	return node, pod, err
}

// forwardQuietly makes this network namespace a router that does not tell clients
// of shorter paths.
func forwardQuietly() error {
	return errors.Join(forward(),
		sysctl("ipv4/conf/all/send_redirects", "0"),
		sysctl("ipv4/conf/default/send_redirects", "0"))
}

// accept accepts and closes connections on the host until the process ends.
func (h *host) accept() (*acceptor, error) {
	a := new(acceptor)
	return a, h.do(func() error {
		if err := tuneTCP(); err != nil {
			return err
		}
		listener, err := listenAll()
		if err == nil {
			a.acceptAll(listener)
		}
		return err
	})
}
