// Command reference writes the page of all configuration fields: from the types and their
// comments, the flags and the defaults.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/beeline-lb/beeline/pkg/config"
)

func main() {
	log.SetFlags(0)
	types := flag.String("types", "", "Go file of the types")
	output := flag.String("o", "", "page to write")
	flag.Parse()
	structs, err := parse(*types)
	if err != nil {
		log.Fatal(err)
	}
	page, err := write(structs, config.Fields())
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(*output, []byte(page), 0o644); err != nil {
		log.Fatal(err)
	}
}

// member is a field of a struct.
type member struct {
	name    string // in JSON
	of      string // name of its type; "" for those without a name
	comment string
}

// parse returns the members of each struct of a file.
func parse(name string) (map[string][]member, error) {
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	structs := make(map[string][]member)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if s, ok := spec.Type.(*ast.StructType); ok {
			structs[spec.Name.Name] = members(s)
		}
		return false
	})
	return structs, nil
}

func members(s *ast.StructType) []member {
	var list []member
	for _, f := range s.Fields.List {
		if len(f.Names) == 0 || f.Tag == nil {
			continue
		}
		tag, _ := strconv.Unquote(f.Tag.Value)
		name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		m := member{name: name, comment: strings.Join(strings.Fields(f.Doc.Text()), " ")}
		if ident, ok := f.Type.(*ast.Ident); ok {
			m.of = ident.Name
		}
		list = append(list, m)
	}
	return list
}

const head = `<!-- Written by make generate, of pkg/config. -->
# Configuration reference

All fields of the two kinds that [a configuration file](configuration.md) may hold, the flags that
set them, and their defaults.

`

const sections = `
Of the sections ` + "`iptables`, `ipvs` and `nftables`" + ` the one counts that ` + "`mode`" + ` names: its ` +
	"`syncPeriod`\n(`--sync-period`), `minSyncPeriod` (`--min-sync-period`) and `masqueradeAll` (`--masquerade-all`); in mode\n`ipvs` the " +
	"last is that of `iptables`. `ipvs.scheduler` is the algorithm where `BeelineConfiguration` names none.\n" +
	"\nOf `featureGates` (`--feature-gates`) `AllowServiceExternalIPs: false` leaves `externalIPs` unserved; others have\nno effect.\n"

// write returns the page.
func write(structs map[string][]member, fields []config.Field) (string, error) {
	byPath := make(map[string]*config.Field)
	for i := range fields {
		byPath[fields[i].Path] = &fields[i]
	}
	var page strings.Builder
	page.WriteString(head)
	table(&page, config.BeelineKind)
	if err := rows(&page, structs, byPath, config.BeelineKind, config.BeelineKind); err != nil {
		return "", err
	}
	page.WriteString("\n")
	table(&page, config.KubeProxyKind)
	var unused []string
	for _, f := range fields {
		name, ours := strings.CutPrefix(f.Path, config.KubeProxyKind+".")
		switch {
		case !ours:
		case f.Unused:
			top, _, _ := strings.Cut(name, ".")
			unused = append(unused, top)
		default:
			row(&page, name, &f, cmp.Or(f.Usage, "as kube-proxy has it"))
		}
	}
	page.WriteString(sections)
	said := []string{"mode", "iptables", "ipvs", "nftables", "featureGates"} // above
	unused = slices.DeleteFunc(slices.Compact(unused), func(name string) bool { return slices.Contains(said, name) })
	fmt.Fprintf(&page, "\nWithout effect: `%s`,\nand what else those three sections hold. The agent logs which of these are set to something else\nthan their default.\n",
		strings.Join(unused, "`, `"))
	return page.String(), nil
}

// meaning returns the comment without what the other columns say.
func (m *member) meaning(hasDefault bool) string {
	text := strings.TrimPrefix(m.comment, m.name+" ")
	for _, verb := range []string{"is ", "are "} {
		text = strings.TrimPrefix(text, verb)
	}
	text = strings.TrimSuffix(text, ".")
	if at := strings.LastIndex(text, ". Defaults to "); at >= 0 && hasDefault && !strings.Contains(text[at:], ", ") {
		text = text[:at]
	}
	return text
}

func table(page *strings.Builder, kind string) {
	fmt.Fprintf(page, "## %s\n\n| field | flag | default | |\n|---|---|---|---|\n", kind)
}

// rows writes the fields of a struct, which is at path.
func rows(page *strings.Builder, structs map[string][]member, fields map[string]*config.Field, of, path string) error {
	for _, m := range structs[of] {
		at := path + "." + m.name
		if structs[m.of] != nil {
			if err := rows(page, structs, fields, m.of, at); err != nil {
				return err
			}
			continue
		}
		f := fields[at]
		if f == nil {
			return fmt.Errorf("%s is in the types, but not in the configuration", at)
		}
		row(page, strings.TrimPrefix(at, config.BeelineKind+"."), f, m.meaning(f.Default != ""))
	}
	return nil
}

func row(page *strings.Builder, name string, f *config.Field, text string) {
	code := func(s string) string {
		if s == "" {
			return ""
		}
		return "`" + s + "`"
	}
	flag := f.Flag
	if flag != "" {
		flag = "--" + flag
	}
	fmt.Fprintf(page, "| `%s` | %s | %s | %s |\n", name, code(flag), code(strings.Trim(f.Default, `"`)), strings.ReplaceAll(text, "|", `\|`))
}
