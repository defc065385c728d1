package kube

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/convert"
)

// peerFollower follows all Nodes of the cluster once it is asked to: with thousands of
// nodes that each follow thousands of Nodes, what nobody needs weighs much.
type peerFollower struct {
	sink      source.Sink
	reflector *cache.Reflector
	listed    <-chan struct{}

	asked chan struct{} // closed when they are to be followed
	once  sync.Once
}

func newPeerFollower(client rest.Interface, sink source.Sink) *peerFollower {
	st := newStore(convert.Peer, func(put []*model.Peer, gone []model.Name) {
		u := source.Update{PutPeers: put}
		for _, name := range gone {
			u.DeletePeers = append(u.DeletePeers, name.Name)
		}
		sink.Apply(u)
	})
	lw := cache.NewFilteredListWatchFromClient(client, "nodes", metav1.NamespaceAll, func(*metav1.ListOptions) {})
	return &peerFollower{
		sink:      sink,
		reflector: cache.NewReflectorWithOptions(lw, &corev1.Node{}, st, cache.ReflectorOptions{Name: "all nodes"}),
		listed:    st.listed,
		asked:     make(chan struct{}),
	}
}

// run follows, once it is asked to, until ctx ends.
func (f *peerFollower) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-f.asked:
	}
	go f.reflector.RunWithContext(ctx)
	select {
	case <-ctx.Done():
	case <-f.listed:
		f.sink.Apply(source.Update{PeersListed: true})
	}
}

// FollowPeers makes the source tell of all nodes of the cluster from now on. It may be
// called at any time, several times, and does not block.
func (s *Source) FollowPeers() {
	s.peers.once.Do(func() { close(s.peers.asked) })
}
