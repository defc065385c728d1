package file

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

// TestChangeIsLikeWhole changes a folder at random: a source that plans only the files that
// changed hands over and serves the same, with the same errors, as one that plans all of them
// each time.
func TestChangeIsLikeWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for range 5 {
		dir := t.TempDir()
		var sources [2]*Source
		var sinks [2]*recorder
		for i := range sources {
			sources[i], sinks[i] = newSource(t, Options{Dir: dir,
				ServiceRanges: prefixes("10.96.0.0/26 fd96::/122"), NodePortMin: 30000, NodePortMax: 30040})
		}
		changes := 0
		for step := range 60 {
			for range 1 + rng.IntN(3) {
				anyFile(t, rng, dir)
			}
			sources[0].catalog.whole = false
			for _, s := range sources {
				scan(t, s)
			}
			if sources[1].catalog.parent != nil {
				t.Fatal("what was noted is kept")
			}
			wantAlike(t, step, sources, sinks)
			if sources[1].catalog.whole {
				changes++
			}
		}
		if changes < 10 {
			t.Errorf("%d steps without a fault: too few to tell anything", changes)
		}
	}
}

func wantAlike(t *testing.T, step int, sources [2]*Source, sinks [2]*recorder) {
	t.Helper()
	whole, change := sources[0].catalog, sources[1].catalog
	for what, pair := range map[string][2]any{
		"updates":  {sinks[0].drain(), sinks[1].drain()},
		"errors":   {fmt.Sprint(sources[0].Errors()), fmt.Sprint(sources[1].Errors())},
		"models":   {whole.models(), change.models()},
		"slices":   {whole.slices.now, change.slices.now},
		"nodes":    {whole.nodes.now, change.nodes.now},
		"assigned": {served(whole), served(change)},
		"holders":  {whole.holders.now, change.holders.now},
		"foreign":  {whole.foreign.now, change.foreign.now},
		"files":    {filesOf(whole), filesOf(change)},
		"CIDRs":    {whole.cidrs, change.cidrs},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Fatalf("step %d: %s of the whole\n%+v\nafter a change\n%+v", step, what, pair[0], pair[1])
		}
	}
}

// served returns what is assigned, without Services that lack nothing.
func served(c *catalog) map[model.Name]assignment {
	all := maps.Clone(c.assigned.now)
	maps.DeleteFunc(all, func(_ model.Name, a assignment) bool { return a.empty() })
	return all
}

// filesOf returns which file declares each object.
func filesOf(c *catalog) map[id]string {
	files := map[id]string{}
	for id, d := range c.declared.now {
		files[id] = d.file
	}
	return files
}

// anyFile writes or removes one of 8 files. Their Services, slices and Nodes share names,
// addresses and node ports now and then.
func anyFile(t *testing.T, rng *rand.Rand, dir string) {
	t.Helper()
	file := rng.IntN(8)
	if rng.IntN(6) == 0 {
		if err := os.Remove(filepath.Join(dir, fmt.Sprintf("%d.yaml", file))); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return
	}
	own := func(share int) int { // seldom another file's
		if rng.IntN(share) == 0 {
			return rng.IntN(8)
		}
		return file
	}
	docs := []string{fmt.Sprintf("kind: Node\napiVersion: v1\nmetadata: {name: n-%d}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.%d}]}\n", own(60), rng.IntN(3))}
	for i := range rng.IntN(4) {
		spec := []string{fmt.Sprintf("ports: [{port: %d}]", 80+rng.IntN(2))}
		if rng.IntN(3) == 0 {
			spec = append(spec, fmt.Sprintf("clusterIP: 10.96.0.%d", 1+4*own(40)+i))
		}
		if rng.IntN(3) == 0 {
			spec = []string{"type: NodePort", "ipFamilyPolicy: PreferDualStack", fmt.Sprintf("ports: [{port: 80, nodePort: %d}, {port: 81, name: x}]", 30000+4*own(40)+i)}
			spec[2] = strings.Replace(spec[2], "{port: 80,", "{port: 80, name: y,", 1)
		}
		if rng.IntN(4) == 0 {
			spec = append(spec, fmt.Sprintf("externalIPs: [192.0.2.%d]", 10+own(20)))
		}
		docs = append(docs, serviceYAML(fmt.Sprintf("s-%d-%d", own(60), i), spec...))
		if rng.IntN(10) == 0 {
			docs[len(docs)-1] = strings.Replace(docs[len(docs)-1], "metadata: {", "metadata: {labels: {service.kubernetes.io/service-proxy-name: x}, ", 1)
		}
		docs = append(docs, fmt.Sprintf("kind: EndpointSlice\napiVersion: discovery.k8s.io/v1\nmetadata: {name: e-%d-%d, labels: {kubernetes.io/service-name: s}}\naddressType: IPv4\nendpoints: [{addresses: [10.0.0.%d]}]\n",
			file, i, 1+rng.IntN(9)))
	}
	if rng.IntN(20) == 0 {
		docs = append(docs, "broken: [")
	}
	write(t, dir, fmt.Sprintf("%d.yaml", file), strings.Join(docs, "---\n"))
}
