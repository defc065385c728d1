package cli_test

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
)

// TestPluginCompletion: kubectl is offered what the cluster has, and nothing where it cannot be asked.
func TestPluginCompletion(t *testing.T) {
	s := newAPIServer(t)
	s.agent("node-a", prints("{}", cli.ExitOK))
	s.agent("node-b", nil)
	for _, name := range [][2]string{{"shop", "cart-0"}, {"shop", "cart-1"}, {"shop", "web-0"}, {"bank", "till"}} {
		meta := metav1.ObjectMeta{Namespace: name[0], Name: name[1]}
		s.add(corev1.Pod{ObjectMeta: meta}, nil)
		meta.Name = "of-" + meta.Name
		s.services = append(s.services, corev1.Service{ObjectMeta: meta})
	}
	complete := func(args string) string {
		var out, errs bytes.Buffer
		words := append([]string{"--kubeconfig=" + s.kubeconfig}, strings.Split(args, " ")...)
		code := cli.RunPluginCompletion(t.Context(), fixtureEnv(&out, &errs), words...)
		offered, _, ended := strings.Cut(out.String(), ":4\n") // no file names
		if code != cli.ExitOK || !ended {
			t.Errorf("%q: exit code %d, output %q, said %q", args, code, &out, &errs)
		}
		return strings.Join(strings.Fields(offered), " ")
	}
	for args, want := range map[string]string{
		"status --node ":                 "node-a node-b",
		"verify --node=node-b":           "node-b",
		"monitor --service of-":          "",
		"monitor --service shop/of-c":    "shop/of-cart-0 shop/of-cart-1",
		"top ":                           "shop/of-cart-0 shop/of-cart-1 shop/of-web-0",
		"top bank/":                      "bank/of-till",
		"top bank/of-till ":              "",
		"explain ":                       "cart-0 cart-1 web-0",
		"explain bank/":                  "bank/till",
		"explain cart-0 ":                "of-cart-0 of-cart-1 of-web-0",
		"explain bank/till ":             "of-till",
		"explain bank/till shop/of-w":    "shop/of-web-0",
		"explain cart-0 of-web-0 ":       "",
		"explain nowhere/":               "",
		"status -n nowhere --node ":      "",
		"status --kubeconfig=/x --node ": "",
	} {
		if got := complete(args); got != want {
			t.Errorf("kubectl beeline %s: offered %q, want %q", args, got, want)
		}
	}
}
