package main

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/model"
)

// compared are the algorithms whose connect() is compared, the first with the others.
var compared = []model.Algorithm{
	model.Random,
	model.LeastConn, model.WeightedLeastConn, model.ShortestDelay, model.NeverQueue, model.Locality, model.LocalityReplicated, model.EWMA,
	model.RoundRobin, model.WeightedRoundRobin, model.SourceHash, model.DestinationHash, model.Maglev,
}

func algorithmKey(a model.Algorithm) string { return "algorithm/" + a.String() }

// algorithmQuantities are those of the algorithms that are compared with the first one.
func algorithmQuantities() []quantity {
	var list []quantity
	for _, a := range compared[1:] {
		q := quantity{key: algorithmKey(a), title: fmt.Sprintf("the same by %s, on top of %s", a, compared[0]), unit: "ns"}
		if a == model.LeastConn {
			q.title = fmt.Sprintf("UDP connect() by %s, %d endpoints, on top of %s", a, destinations, compared[0])
			q.bound, q.bar = atMost, 60
		}
		list = append(list, q)
	}
	return list
}

// measureAlgorithms measures the thread CPU time of connect() on a UDP socket that is connected
// before, so that one connection ends and one begins. The Services differ in nothing but their
// algorithm.
func measureAlgorithms(ctx context.Context, box *sandbox) ([]samples, error) {
	l := load{services: 3 * len(compared), endpoints: destinations, protocol: model.UDP, algorithms: compared}
	groups, err := servedGroups(ctx, box, l, beeline)
	if err != nil {
		return nil, err
	}
	if err := addUplink(); err != nil {
		return nil, err
	}
	return measureFamilies(func(s samples, family model.Family) error {
		var list []contestant
		for i, algorithm := range compared {
			service := len(compared) + i
			if l.special(service) {
				service += len(compared)
			}
			v := &variant{name: algorithm.String(), group: beeline, targets: toService(l, service, family)}
			if err := v.openUDP(groups, family); err != nil {
				return err
			}
			defer unix.Close(int(v.fd))
			list = append(list, contestant{v.name, v.reuse})
		}
		return interleave(ctx, connectRounds, list, func(t measured) {
			for _, algorithm := range compared[1:] {
				s.add(of(algorithmKey(algorithm), family), t[algorithm.String()]-t[compared[0].String()])
			}
		})
	})
}
