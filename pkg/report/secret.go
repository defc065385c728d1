package report

import (
	"bytes"
	"context"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// removed stands in place of a secret.
const removed = "[removed]"

// The names by which secrets go, and what is between such a name (NAME) and its value. A flag begins a word, as
// a Service with such a name does not, and its value is on the same line, unless both are strings of a list.
const (
	secretIs   = `NAME\\*["']?\s*[:=]\s*`
	flagName   = `(?:^|[^a-z0-9_.-]|\\[nrt])--?[a-z0-9_.-]*NAME`
	secretFlag = flagName + `(?:["']?|,)[ \t]+`
	secretItem = flagName + `\\*["'],\s*`
)

// A value without quotes: what other patterns have removed is none. And the end of a string in a list: after
// a key of an object there is a colon.
const (
	secretValue = `[^\s\\"'\[{,;](?:[^\s"']*[^\s"',;})\]])?`
	itemEnds    = `\s*(?:[^\s:]|$)`
)

// secret is what looks like one, wherever it is: its pattern begins with one of some names, at NAME, or at
// the flag that the name ends. No part reads secrets on purpose: what is logged, or written into an address
// of the configuration, may have one.
//
// Only places with a name are looked at, found as plain text: a pattern alone takes seconds for a megabyte.
type secret struct {
	names [][]byte // in lower case; the text may have others
	rules []secretRule
}

type secretRule struct {
	pattern string
	at      *regexp.Regexp // the pattern after one character, at the beginning
	with    string         // what remains
}

var secrets = []secret{
	newSecret([]string{"eyJ"}, // JSON Web Token (RFC 7519)
		secretRule{pattern: `\bNAME[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.?[A-Za-z0-9_-]*`, with: removed}),
	newSecret([]string{"authorization"},
		secretRule{pattern: `(?i)(NAME["']?\s*[:=]\s*["']?[a-z]+\s+)[^\s"',;\[]+`, with: "${1}" + removed}),
	newSecret([]string{"bearer"},
		secretRule{pattern: `(?i)\b(NAME\s+)[A-Za-z0-9._~+/=-]{8,}`, with: "${1}" + removed}),
	// To the last @ before a path, for who forgets to escape @, # or ? in a password.
	newSecret([]string{"://"},
		secretRule{pattern: `(NAME)[^/\s"'<>]+@`, with: "${1}" + removed + "@"}),
	// In quotes that are quoted, in quotes of which the end may have been cut off, and without.
	newSecret([]string{"token", "passwd", "passwod", "passwrd", "password", "secret", "apikey", "api-key", "api_key", "key-data"},
		secretRule{pattern: `(?i)(` + secretIs + `|` + secretFlag + `)\\+"[^"\\]+`, with: `${1}\"` + removed},
		secretRule{pattern: `(?im)(` + secretIs + `|` + secretFlag + `)"(?:[^"\\\n]|\\.)+("|$)`, with: `${1}"` + removed + "${2}"},
		secretRule{pattern: `(?im)(` + secretIs + `|` + secretFlag + `)'(?:[^'\\\n]|\\.)+('|$)`, with: `${1}'` + removed + "${2}"},
		secretRule{pattern: `(?i)(` + secretIs + `|` + secretFlag + `)` + secretValue, with: "${1}" + removed},
		secretRule{pattern: `(?im)(` + secretItem + `)\\+"[^"\\]+(\\+"` + itemEnds + `|$)`, with: `${1}\"` + removed + "${2}"},
		secretRule{pattern: `(?im)(` + secretItem + `)"(?:[^"\\\n]|\\.)+("` + itemEnds + `|$)`, with: `${1}"` + removed + "${2}"},
		secretRule{pattern: `(?im)(` + secretItem + `)'(?:[^'\\\n]|\\.)+('` + itemEnds + `|$)`, with: `${1}'` + removed + "${2}"}),
}

// newSecret puts the names into the patterns.
func newSecret(names []string, rules ...secretRule) secret {
	s := secret{rules: rules}
	for i := range rules {
		rules[i].pattern = strings.ReplaceAll(rules[i].pattern, "NAME", "(?:"+strings.Join(names, "|")+")")
		rules[i].at = regexp.MustCompile(`\A(?s:.)` + rules[i].pattern)
	}
	for _, name := range names {
		s.names = append(s.names, []byte(strings.ToLower(name)))
	}
	return s
}

// beforeText stands before a text while secrets are removed: a pattern then has a character before it.
const beforeText = "\n\n"

// withoutSecrets returns a text without what looks like a secret, and how many of them it had. Without an
// error, which is that of ctx's end, the text has none.
func withoutSecrets(ctx context.Context, text []byte) (clean []byte, count int, err error) {
	text, count = withoutKeys(text)
	text = append([]byte(beforeText), text...)
	folded := foldCase(nil, text)
	for _, s := range secrets {
		places := s.places(text, folded)
		for _, r := range s.rules {
			out, n, err := r.remove(ctx, text, places)
			if err != nil {
				return nil, 0, err
			}
			if n > 0 {
				text, count = out, count+n
				folded = foldCase(folded, text)
				places = s.places(text, folded)
			}
		}
	}
	return text[len(beforeText):], count, nil
}

// places returns where a match may begin in a text, in order: at each name, and at the flag that it ends.
func (s *secret) places(text, folded []byte) (list []int) {
	for _, name := range s.names {
		for at := 0; ; at += len(name) {
			next := bytes.Index(folded[at:], name)
			if next < 0 {
				break
			}
			at += next
			list = append(list, at)
		}
	}
	slices.Sort(list)
	var flags []int
	former := 0 // the name before: of one word the first has found where it begins
	for _, at := range list {
		begin := at
		for begin > former && ofFlag(folded[begin-1]) {
			begin--
		}
		if begin > former {
			_, size := utf8.DecodeLastRune(text[:begin])
			flags = append(flags, begin-size)
		}
		former = at
	}
	list = append(list, flags...)
	slices.Sort(list)
	return list
}

// foldCase returns a text with small letters in place of A to Z, in the memory of a former one that has room.
func foldCase(folded, text []byte) []byte {
	folded = append(folded[:0], text...)
	for i, c := range folded {
		if 'A' <= c && c <= 'Z' {
			folded[i] = c + 'a' - 'A'
		}
	}
	return folded
}

// ofFlag reports whether a character of a text without capitals may be in the name of a flag.
func ofFlag(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '_' || c == '.' || c == '-'
}

// remove removes the matches that begin at some places, in order, of which none is the first character.
func (r *secretRule) remove(ctx context.Context, text []byte, places []int) (clean []byte, count int, err error) {
	done := 0 // bytes of text that are in clean, or left out
	for _, at := range places {
		if at < done {
			continue
		}
		if ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
		_, size := utf8.DecodeLastRune(text[:at])
		from := text[at-size:]
		m := r.at.FindSubmatchIndex(from)
		if m == nil {
			continue
		}
		if clean == nil {
			clean = make([]byte, 0, len(text)+len(r.with))
		}
		clean = append(clean, text[done:at]...)
		clean = r.at.Expand(clean, []byte(r.with), from, m)
		done, count = at-size+m[1], count+1
	}
	if count == 0 {
		return text, 0, nil
	}
	return append(clean, text[done:]...), count, nil
}

// keyMark is the first or last line of a private key (PEM, RFC 7468).
var keyMark = regexp.MustCompile(`-----(BEGIN|END) [A-Z0-9 ]*PRIVATE KEY-----`)

// maxKey is how long a private key is at most, with a prefix before each of its lines, as logs have.
const maxKey = 32 << 10

// maxSecret is how long what is removed in one piece is at most, with what says that it is a secret.
const maxSecret = maxKey + 1<<10

// withoutKeys returns a text without private keys, and how many of them it had. All between the first
// and the last line of one goes; where one of these is missing, so much as a key may have.
func withoutKeys(text []byte) (clean []byte, count int) {
	marks := keyMark.FindAllSubmatchIndex(text, -1)
	if len(marks) == 0 {
		return text, 0
	}
	var out bytes.Buffer
	done := 0 // bytes of text that are in out, or left out
	drop := func(from, to int) {
		out.Write(text[done:max(from, done)])
		out.WriteString(removed)
		done, count = to, count+1
	}
	for i, m := range marks {
		switch text[m[2]] {
		case 'B':
			to := min(len(text), m[1]+maxKey)
			if i+1 < len(marks) {
				if next := marks[i+1]; text[next[2]] == 'E' || next[0] < to {
					to = next[0]
				}
			}
			drop(m[1], to)
		case 'E':
			if i == 0 || text[marks[i-1][2]] == 'E' {
				drop(m[0]-maxKey, m[0])
			}
		}
	}
	out.Write(text[done:])
	return out.Bytes(), count
}
