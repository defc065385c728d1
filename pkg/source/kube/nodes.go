package kube

import (
	"context"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/convert"
)

// nodeFollower follows all Nodes of the cluster once it is asked to: with thousands of
// nodes that each follow thousands of Nodes, unused fields weigh much.
type nodeFollower struct {
	sink      source.Sink
	reflector *cache.Reflector
	listed    <-chan struct{}

	asked chan struct{} // closed when they are to be followed
	once  sync.Once
}

func newNodeFollower(client rest.Interface, sink source.Sink) *nodeFollower {
	st := newStore(convert.Node, func(put []*model.Node, gone []model.Name) {
		u := source.Update{PutNodes: put}
		for _, n := range put {
			if n.Left > 0 {
				klog.InfoS("Node lists more addresses than count", "node", n.Name, "counted", len(n.Addrs), "others", n.Left)
			}
		}
		for _, name := range gone {
			u.DeleteNodes = append(u.DeleteNodes, name.Name)
		}
		sink.Apply(u)
	})
	return &nodeFollower{
		sink:      sink,
		reflector: newReflector(client, "nodes", "all nodes", selectAll, st),
		listed:    st.listed,
		asked:     make(chan struct{}),
	}
}

// run follows, once it is asked to, until ctx ends.
func (f *nodeFollower) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-f.asked:
	}
	go f.reflector.RunWithContext(ctx)
	select {
	case <-ctx.Done():
	case <-f.listed:
		f.sink.Apply(source.Update{NodesListed: true})
	}
}

// FollowNodes makes the source tell of all nodes of the cluster from now on. It may be
// called at any time, several times, and does not block.
func (s *Source) FollowNodes() {
	s.nodes.once.Do(func() { close(s.nodes.asked) })
}
