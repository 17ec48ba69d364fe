package source

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pronouns matches the words that hide the subject of a sentence. A line break inside a comment
// counts as a space.
var pronouns = regexp.MustCompile(`(?i)\b(whoever|nobody|somebody|everybody|anybody|those(\s|//)+who|who(\s|//)+(has|is))\b`)

// hints are parts of what pronouns matches, in small letters. They begin with fixed letters, so that a
// text without any of them is read much faster.
var hints = []*regexp.Regexp{regexp.MustCompile(`who(ever|\s|//)`), regexp.MustCompile(`body`)}

// ownFile is the file that lists the words.
const ownFile = "internal/source/words_test.go"

// account names the file that looks up the Unix account of the unprivileged user.
const account = "internal/pgtest/user_unix.go"

// unfinished lists what does not pass yet: files, folders with all that is in them, and "." for the
// files of the root folder. Remove an entry as soon as it passes.
var unfinished = []string{}

// Go files of all modules, the pages in docs and the README name the subject of a sentence.
func TestSentencesHaveASubject(t *testing.T) {
	needed := make(map[string]bool) // by entry of unfinished
	files(t, isProse, func(name string, src []byte) {
		if name == ownFile || name == account {
			return
		}
		for _, found := range pronounsIn(src) {
			entry, ok := unfinishedEntry(name)
			if ok {
				needed[entry] = true
				continue
			}
			t.Errorf("%s:%s: name the caller, worker, process or record instead", name, found)
		}
	})
	for _, entry := range unfinished {
		if !needed[entry] {
			t.Errorf("%s passes: remove it from the list of unfinished files", entry)
		}
	}
}

func isProse(name string, d fs.DirEntry) bool {
	return d.IsDir() || path.Ext(name) == ".go" || name == "README.md" ||
		strings.HasPrefix(name, "docs/") && path.Ext(name) == ".md"
}

// unfinishedEntry returns the entry of unfinished that covers a file, the most specific first.
func unfinishedEntry(name string) (string, bool) {
	for part := name; ; part = path.Dir(part) {
		if part == "." && path.Dir(name) != "." {
			return "", false
		}
		if slices.Contains(unfinished, part) {
			return part, true
		}
		if part == "." {
			return "", false
		}
	}
}

// pronounsIn returns the words of src that pronouns matches, each with its line.
func pronounsIn(src []byte) []string {
	lower := bytes.ToLower(src)
	if !slices.ContainsFunc(hints, func(hint *regexp.Regexp) bool { return hint.Match(lower) }) {
		return nil
	}
	var found []string
	for _, at := range pronouns.FindAllIndex(src, -1) {
		word := string(src[at[0]:at[1]])
		if word == "NoBody" { // of net/http
			continue
		}
		line := 1 + bytes.Count(src[:at[0]], []byte("\n"))
		found = append(found, fmt.Sprintf("%d: %q", line, word))
	}
	return found
}

func TestPronounsIn(t *testing.T) {
	for text, want := range map[string]string{
		"a queue":                            "",
		"// nobody waits":                    `1: "nobody"`,
		"x\n// Whoever comes; NOBODY":        `2: "Whoever" 2: "NOBODY"`,
		"those who\nwho has it, who is it":   `1: "those who" 2: "who has" 2: "who is"`,
		"// a waiter who\n\t// is queued":    `1: "who\n\t// is"`,
		"everybody, Somebody's, anybody":     `1: "everybody" 1: "Somebody" 1: "anybody"`,
		"who isolates, whose, thosewho":      "",
		"r.Body = http.NoBody":               "",
		"nobodyElse := 1 // as a whole word": "",
	} {
		if got := strings.Join(pronounsIn([]byte(text)), " "); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func TestUnfinishedEntry(t *testing.T) {
	defer func(before []string) { unfinished = before }(unfinished)
	unfinished = []string{".", "flow", "docs/chat.md"}
	for name, want := range map[string]string{
		"lock.go":            ".",
		"README.md":          ".",
		"lock_test.go":       ".",
		"sse/sse_test.go":    "",
		"sse/sse.go":         "",
		"flow/machine/a.go":  "flow",
		"flowers/a.go":       "",
		"persist/persist.go": "",
	} {
		if got, ok := unfinishedEntry(name); got != want || ok != (want != "") {
			t.Errorf("%s: got %q, %v", name, got, ok)
		}
	}
}
