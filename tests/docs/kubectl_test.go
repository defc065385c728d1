package docs_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source/convert"
	"github.com/beeline-lb/beeline/tests/pages"
)

var (
	clusterCall = regexp.MustCompile(`^(kubectl|helm) `)
	placeholder = regexp.MustCompile(`^[A-Z][A-Z-]*$`)
	madeName    = regexp.MustCompile(`name: \{\{ include "beeline\.fullname" \. \}\}(\S*)|printf "%s(\S*)" \(include "beeline\.fullname" \.\)`)
	label       = regexp.MustCompile(`(?m)^(app\.kubernetes\.io/\S+): `)
)

// kubectlVerbs are the commands of kubectl that documents use, with their own flags.
var kubectlVerbs = map[string][]string{
	"annotate":       nil,
	"describe":       {"selector"},
	"edit":           nil,
	"exec":           {"container", "stdin", "tty"},
	"get":            {"selector", "output", "field-selector"},
	"logs":           {"container", "previous", "selector"},
	"patch":          {"type", "patch"},
	"port-forward":   nil,
	"rollout status": nil,
}

// shortKinds are names of kinds that only kubectl and the API server know.
var shortKinds = map[string]string{"cm": "configmap", "ds": "daemonset", "no": "node", "po": "pod", "svc": "service"}

// kubectlFlags returns flags of kubectl, and those of a command.
func kubectlFlags(of []string) (flags *pflag.FlagSet, selector *string) {
	flags = pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.StringP("namespace", "n", "", "")
	selector = new(string)
	for _, name := range of {
		switch name {
		case "selector":
			flags.StringVarP(selector, name, "l", "", "")
		case "previous":
			flags.Bool(name, false, "")
		case "stdin":
			flags.BoolP(name, "i", false, "")
		case "tty":
			flags.BoolP(name, "t", false, "")
		case "type", "field-selector":
			flags.String(name, "", "")
		default:
			flags.StringP(name, name[:1], "", "")
		}
	}
	return flags, selector
}

// verbOf returns the command of kubectl among words; "" for none that is known.
func verbOf(words []string) string {
	for i := range words {
		for n := 1; n <= 2 && i+n <= len(words); n++ {
			if _, ok := kubectlVerbs[strings.Join(words[i:i+n], " ")]; ok {
				return strings.Join(words[i:i+n], " ")
			}
		}
	}
	return ""
}

// kinds returns the kinds of objects by what kubectl calls them: in lower case, of one and of many.
func kinds() map[string]string {
	all := make(map[string]string)
	for kind := range scheme.Scheme.AllKnownTypes() {
		plural, singular := meta.UnsafeGuessKindToResource(kind)
		all[plural.Resource], all[singular.Resource] = singular.Resource, singular.Resource
	}
	for short, kind := range shortKinds {
		all[short] = kind
	}
	return all
}

// chartFacts is what the chart's templates say: the names of its objects and the labels of pods.
type chartFacts struct {
	names  []string
	labels []string
}

func readChart(t *testing.T) chartFacts {
	t.Helper()
	var facts chartFacts
	paths, err := filepath.Glob("../../charts/beeline/templates/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // a folder
		}
		for _, m := range madeName.FindAllStringSubmatch(string(text), -1) {
			facts.names = append(facts.names, "beeline"+m[1]+m[2])
		}
		for _, m := range label.FindAllStringSubmatch(string(text), -1) {
			facts.labels = append(facts.labels, m[1])
		}
	}
	if len(facts.names) < 5 || len(facts.labels) < 3 {
		t.Fatalf("found too little in the chart's templates: %+v", facts)
	}
	return facts
}

// kubectlCheck checks kubectl's commands of a document.
type kubectlCheck struct {
	t       *testing.T
	path    string
	kinds   map[string]string
	chart   chartFacts
	patches []map[string]any // that it has merged
}

// run checks a command: the verb and its flags, kinds and names of objects, labels, patches.
func (c *kubectlCheck) run(command string) {
	c.t.Helper()
	words := pages.Words(command)[1:]
	if i := slices.Index(words, "--"); i >= 0 {
		words = words[:i] // what runs in a pod
	}
	verb := verbOf(words)
	flags, selector := kubectlFlags(kubectlVerbs[verb])
	if err := flags.Parse(words); err != nil {
		c.t.Errorf("%s: %s: %v", c.path, command, err)
		return
	}
	args, ok := strings.CutPrefix(strings.Join(flags.Args(), "\n"), strings.ReplaceAll(verb, " ", "\n"))
	if verb == "" || !ok {
		c.t.Errorf("%s: %s: the command is not known here: add it to kubectlVerbs", c.path, command)
		return
	}
	c.labels(command, *selector)
	c.objects(command, verb, strings.Fields(args))
	if verb == "patch" {
		c.patch(command, flags.Lookup("type").Value.String(), flags.Lookup("patch").Value.String())
	}
}

// labels checks the labels of a selector, which are of the chart's pods.
func (c *kubectlCheck) labels(command, selector string) {
	c.t.Helper()
	if selector == "" {
		return
	}
	for _, part := range strings.Split(selector, ",") {
		key, value, _ := strings.Cut(part, "=")
		if !slices.Contains(c.chart.labels, key) || value != "beeline" {
			c.t.Errorf("%s: %s: pods of the chart have no label %s", c.path, command, part)
		}
	}
}

// objects checks the objects that a command names, and annotations.
func (c *kubectlCheck) objects(command, verb string, args []string) {
	c.t.Helper()
	kind, name := "pod", ""
	switch {
	case len(args) == 0:
		if verb != "logs" && verb != "exec" {
			return // a reader fills it in
		}
	case strings.Contains(args[0], "/"):
		kind, name, _ = strings.Cut(args[0], "/")
		args = args[1:]
	case verb == "logs" || verb == "exec":
		name, args = args[0], args[1:]
	case verb == "port-forward":
		name, args = args[0], nil // ports
	case len(args) > 1:
		kind, name, args = args[0], args[1], args[2:]
	default:
		kind, args = args[0], nil
	}
	full := c.kinds[kind]
	if full == "" {
		c.t.Errorf("%s: %s: there is no kind %q", c.path, command, kind)
	}
	made := slices.Contains(c.chart.names, name) || name == "kube-proxy"
	if name != "" && !made && !placeholder.MatchString(name) && full != "service" {
		c.t.Errorf("%s: %s: the chart makes no %s %q", c.path, command, full, name)
	}
	for _, annotation := range args {
		c.annotation(command, annotation)
	}
}

// annotation checks an annotation of a Service.
func (c *kubectlCheck) annotation(command, text string) {
	c.t.Helper()
	key, value, _ := strings.Cut(text, "=")
	if !slices.Contains(convert.AllAnnotations, key) {
		c.t.Errorf("%s: %s: there is no annotation %q", c.path, command, key)
	}
	if key == convert.AnnotationAlgorithm {
		if _, err := model.ParseAlgorithm(value); err != nil {
			c.t.Errorf("%s: %s: %v", c.path, command, err)
		}
	}
}

// patch checks a patch of a DaemonSet: it has fields that there are, or removes what another one
// of the page has set.
func (c *kubectlCheck) patch(command, kind, text string) {
	c.t.Helper()
	switch kind {
	case "merge":
		var set appsv1.DaemonSet
		patch := make(map[string]any)
		if err := yaml.UnmarshalStrict([]byte(text), &set); err != nil {
			c.t.Errorf("%s: %s: %v", c.path, command, err)
		} else if err := json.Unmarshal([]byte(text), &patch); err != nil {
			c.t.Errorf("%s: %s: %v", c.path, command, err)
		}
		c.patches = append(c.patches, patch)
	case "json":
		var steps []struct{ Op, Path string }
		if err := yaml.UnmarshalStrict([]byte(text), &steps); err != nil {
			c.t.Errorf("%s: %s: %v", c.path, command, err)
		}
		for _, step := range steps {
			if step.Op != "remove" || !slices.ContainsFunc(c.patches, func(p map[string]any) bool { return hasPath(p, step.Path) }) {
				c.t.Errorf("%s: %s: no patch of the page has set %s", c.path, command, step.Path)
			}
		}
	default:
		c.t.Errorf("%s: %s: the type of patch is %q, want merge or json", c.path, command, kind)
	}
}

// hasPath reports whether an object has what a JSON pointer leads to.
func hasPath(object any, pointer string) bool {
	for _, key := range strings.Split(pointer, "/")[1:] {
		fields, ok := object.(map[string]any)
		if !ok {
			return false
		}
		if object, ok = fields[strings.NewReplacer("~1", "/", "~0", "~").Replace(key)]; !ok {
			return false
		}
	}
	return true
}

// TestKubectl: kubectl's commands in documents name kinds of objects, names of the chart, labels
// of its pods, annotations and fields that there are. It needs no kubectl, which takes minutes to
// build; TestDocumentedKubectl in tests/chart asks it about commands and flags. A dry run would say
// less of the rest: on the client's side it, too, gets the object from a server, which must have it.
// Of the plugin TestCommands knows more.
func TestKubectl(t *testing.T) {
	known, chart, found := kinds(), readChart(t), 0
	for path, text := range pages.All(t) {
		c := &kubectlCheck{t: t, path: path, kinds: known, chart: chart}
		for _, command := range pages.Commands(text) {
			if m := clusterCall.FindStringSubmatch(command); m != nil && m[1] == "kubectl" && !pluginCall.MatchString(command) {
				found++
				c.run(command)
			}
		}
	}
	if found < 15 {
		t.Errorf("found %d commands only", found)
	}
}
