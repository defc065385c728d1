package drain

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/pkg/socket"
)

// settle is how long programs that have chosen an endpoint get to connect its socket.
const settle = time.Second

// udpSockets are the connected UDP sockets that Services have led to endpoints. Nobody destroys them once Beeline has
// left, should their endpoint go, and no other proxy moves them: the kernel sends to the endpoint itself.
type udpSockets struct {
	service *ebpf.Program // nil: they are not known
}

// openSockets returns those of some maps, which are known also when the maps are removed. What fails is logged: it
// keeps Beeline from being removed no more than sockets that cannot be destroyed.
func openSockets(maps *bpfmap.Maps) udpSockets {
	program, err := datapath.LoadUDPService(maps)
	if err != nil {
		klog.ErrorS(err, "UDP sockets stay connected to endpoints that Services have chosen")
	}
	return udpSockets{program}
}

// destroy destroys those that there are: their processes get an error and connect anew.
func (s udpSockets) destroy(ctx context.Context) {
	if s.service == nil || !pause.For(ctx, settle) {
		return
	}
	destroyed, err := socket.New(socket.Options{
		Service: func(u bpf.UDPSocket) (uint32, bool, error) { return bpf.UDPService(s.service, u) },
		Serves:  func(uint32, netip.AddrPort) bool { return false },
	}).Search()
	if err != nil {
		klog.ErrorS(err, "UDP sockets stay connected to endpoints that Services have chosen")
	}
	if destroyed > 0 {
		klog.InfoS("Destroyed UDP sockets that Services have connected to endpoints: their processes connect anew", "sockets", destroyed)
	}
}

// cleanup removes everything, then destroys the sockets: none comes to them any more.
func (s udpSockets) cleanup(ctx context.Context, bpffs string) (removed []string, err error) {
	removed, err = datapath.Cleanup(ctx, bpffs)
	if running := (*datapath.RunningError)(nil); !errors.As(err, &running) {
		s.destroy(ctx)
	}
	return removed, errors.Join(err, s.close())
}

func (s udpSockets) close() error { return s.service.Close() }

// Cleanup is [datapath.Cleanup]. Connected UDP sockets that Services have led to endpoints are destroyed.
func Cleanup(ctx context.Context, bpffs string) (removed []string, err error) {
	var sockets udpSockets
	held, err := datapath.Hold(bpffs)
	running := (*datapath.RunningError)(nil)
	switch {
	case err == nil:
		sockets = openSockets(held.Maps)
		if err := held.Close(); err != nil {
			return nil, errors.Join(err, sockets.close())
		}
	case !errors.Is(err, os.ErrNotExist) && !errors.As(err, &running):
		klog.ErrorS(err, "UDP sockets stay connected to endpoints that Services have chosen")
	}
	return sockets.cleanup(ctx, bpffs)
}
