package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/cgroup"
	"github.com/beeline-lb/beeline/tests/isolated"
)

// childEnv is where the process that runs the cluster finds its [settings].
const childEnv = "BEELINE_CLUSTER"

// listenerFD is where that process finds the socket on which this machine's
// loopback device leads to the API server.
const listenerFD = 3

// placePrefix begins the names of a cluster's folder and cgroups.
const placePrefix = "beeline-cluster-"

// place is what belongs to one cluster on this machine. All else is in network,
// mount and pid namespaces, which end with their processes.
type place struct {
	groups   groups
	dir      string
	listener *net.TCPListener
	inotify  int // the machine's own limit, when it was raised
}

func newPlace() (p *place, err error) {
	p = &place{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.remove())
		}
	}()
	if p.dir, err = os.MkdirTemp("", placePrefix); err != nil {
		return p, err
	}
	all, err := hierarchies()
	if err != nil {
		return p, err
	}
	p.groups = groups{hierarchies: all, name: filepath.Base(p.dir)}
	if p.groups.unified() == "" {
		return p, errors.New("cgroup2 is not mounted")
	}
	if err := p.groups.make(); err != nil {
		return p, err
	}
	if p.inotify, err = raiseInotify(); err != nil {
		return p, err
	}
	p.listener, err = net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	return p, err
}

// run runs the cluster in a child process, in network, mount and host-name
// namespaces and cgroups of its own, until it ends or ctx does.
func (p *place) run(ctx context.Context, s settings) error {
	s.Dir, s.Groups, s.Hierarchies = p.dir, p.groups.name, p.groups.hierarchies
	env, err := json.Marshal(s)
	if err != nil {
		return err
	}
	socket, err := p.listener.File()
	if err != nil {
		return err
	}
	defer socket.Close()

	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.WaitDelay = time.Minute
	cmd.Env = append(isolated.Environ(), childEnv+"="+string(env))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{socket}
	return cgroup.Run(cmd, p.groups.unified(), unix.CLONE_NEWNET|unix.CLONE_NEWNS|unix.CLONE_NEWUTS)
}

// remove ends what is left of the cluster and takes down all that was made.
func (p *place) remove() error {
	var errs []error
	if p.listener != nil {
		errs = append(errs, p.listener.Close())
	}
	if p.groups.name != "" {
		errs = append(errs, p.groups.kill(), p.groups.remove(), restoreInotify(p.inotify, p.groups))
	}
	if p.dir != "" {
		errs = append(errs, os.RemoveAll(p.dir))
	}
	return errors.Join(errs...)
}
