package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// sizes are the clusters of which the memory is measured, for the table in docs/sizing.md.
var sizes = []load{
	{services: 100, endpoints: 10, protocol: model.TCP},
	{services: 1000, endpoints: 10, protocol: model.TCP},
	{services: 1000, endpoints: 100, protocol: model.TCP},
	{services: 10000, endpoints: 10, protocol: model.TCP},
	{services: 50000, endpoints: 10, protocol: model.TCP},
}

// sizeQuantities are measured for each size.
var sizeQuantities = []quantity{
	{key: "tables", title: "kernel memory of the tables that grow with Services", unit: "MiB"},
	{key: "private", title: "agent's private memory", unit: "MiB"},
	{key: "heap", title: "of that, Go's heap in use", unit: "MiB"},
	{key: "rss", title: "agent's resident memory, with pages of the tables and of the program", unit: "MiB"},
	{key: "rss/peak", title: "its peak", unit: "MiB"},
}

func (l load) sizeKey(name string) string { return fmt.Sprintf("size/%s/%s", l, name) }

// measureSizes measures the memory of an agent that has been given everything by a real API
// server: one port and one family a Service, a tenth of them with session affinity.
func measureSizes(ctx context.Context, box *sandbox) ([]samples, error) {
	cgroup, err := box.subgroup(beeline)
	if err != nil {
		return nil, err
	}
	s := make(samples)
	for _, l := range sizes {
		if err := l.measureSize(ctx, s, box, cgroup); err != nil {
			return nil, fmt.Errorf("%s: %w", l, err)
		}
	}
	return []samples{s}, nil
}

func (l load) measureSize(ctx context.Context, s samples, box *sandbox, cgroup string) error {
	server, stop, err := startCluster(ctx, box.dir)
	if err != nil {
		return err
	}
	defer stop()
	if err := l.store(ctx, server.EtcdURL); err != nil {
		return err
	}
	time.Sleep(settle)
	for range agentRuns {
		if err := l.weigh(ctx, s, box, cgroup, server.Kubeconfig); err != nil {
			return err
		}
	}
	return nil
}

// store writes the Services and their slices as an API server stores them: by way of one,
// which has to find 50,000 addresses, it takes half an hour.
func (l load) store(ctx context.Context, etcd string) error {
	encoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	type put struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	}
	type operation struct {
		Put put `json:"requestPut"`
	}
	var batch []operation
	flush := func() error {
		body, err := json.Marshal(map[string]any{"success": batch})
		if err != nil {
			return err
		}
		batch = batch[:0]
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, etcd+"/v3/kv/txn", bytes.NewReader(body))
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK {
			return fmt.Errorf("write to etcd: %s: %w: %s", response.Status, err, answer)
		}
		return nil
	}
	add := func(folder string, kind schema.GroupVersionKind, object interface {
		runtime.Object
		metav1.Object
	}) error {
		object.GetObjectKind().SetGroupVersionKind(kind)
		object.SetNamespace(namespace)
		object.SetUID(uuid.NewUUID())
		object.SetCreationTimestamp(metav1.Now())
		var value bytes.Buffer
		if err := encoder.Encode(object, &value); err != nil {
			return err
		}
		key := fmt.Sprintf("/registry/%s/%s/%s", folder, namespace, object.GetName())
		batch = append(batch, operation{put{[]byte(key), value.Bytes()}})
		if len(batch) < 100 {
			return nil
		}
		return flush()
	}
	for i := range l.services {
		s := l.apiService(i)
		s.Spec.Type = corev1.ServiceTypeClusterIP
		s.Spec.ClusterIPs, s.Spec.IPFamilies = []string{s.Spec.ClusterIP}, []corev1.IPFamily{corev1.IPv4Protocol}
		if err := add("services/specs", corev1.SchemeGroupVersion.WithKind("Service"), s); err != nil {
			return err
		}
		for _, slice := range l.apiSlices(i) {
			if err := add("endpointslices", discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), slice); err != nil {
				return err
			}
		}
	}
	return flush()
}

// weigh measures one run of the agent.
func (l load) weigh(ctx context.Context, s samples, box *sandbox, cgroup, kubeconfig string) (err error) {
	a, err := startAgent(box, filepath.Join(os.Getenv(buildEnv), agentName), kubeconfig, cgroup)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	if _, err := a.synced(ctx, l.services); err != nil {
		return err
	}
	time.Sleep(settle)
	for key, field := range map[string]string{"rss": "VmRSS", "rss/peak": "VmHWM", "private": "RssAnon"} {
		mib, err := a.memory(field)
		if err != nil {
			return err
		}
		s.add(l.sizeKey(key), mib)
	}
	heap, err := heapInUse(ctx)
	if err != nil {
		return err
	}
	s.add(l.sizeKey("heap"), heap)
	tables, err := serviceTables(box.bpffs)
	s.add(l.sizeKey("tables"), tables)
	return err
}

// heapInUse asks the agent of this network namespace, MiB.
func heapInUse(ctx context.Context) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10249/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		var bytes float64
		if n, _ := fmt.Sscanf(lines.Text(), "go_memstats_heap_inuse_bytes %g", &bytes); n == 1 {
			return bytes / (1 << 20), nil
		}
	}
	return 0, errors.New("the agent's metrics have no go_memstats_heap_inuse_bytes")
}

// serviceTables returns the kernel memory of the pinned tables that grow with Services and
// endpoints, MiB.
func serviceTables(bpffs string) (float64, error) {
	maps, err := bpfmap.Open(datapath.Dir(bpffs))
	if err != nil {
		return 0, err
	}
	defer maps.Close()
	have, err := servicemap.New(maps).Snapshot()
	if err != nil {
		return 0, err
	}
	fills, err := statusmap.New(maps).Fill(have)
	if err != nil {
		return 0, err
	}
	var total uint64
	for _, f := range fills {
		switch strings.TrimPrefix(f.Setting, "tables.max") {
		case "Frontends", "Services", "Backends", "Slots", "SourceRanges":
			total += f.Memory
		}
	}
	return float64(total) / (1 << 20), nil
}
