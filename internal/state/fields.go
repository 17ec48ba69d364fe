package state

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// jsonField is a struct field that encoding/json carries.
type jsonField struct {
	name      string
	tagged    bool
	index     []int
	rt        reflect.Type
	omitEmpty bool
	omitZero  bool
}

// jsonFields lists the fields of struct t that encoding/json carries. It follows the rules of that
// package for embedded structs: breadth first, the shallowest field of a name wins, a tagged field
// wins among equals, and a tie hides all of them.
func jsonFields(t reflect.Type) []jsonField {
	type level struct {
		rt    reflect.Type
		index []int
	}
	var (
		fields        []jsonField
		current, next = []level(nil), []level{{rt: t}}
		count         map[reflect.Type]int
		nextCount     = map[reflect.Type]int{}
		visited       = map[reflect.Type]bool{}
	)
	for len(next) > 0 {
		current, next = next, nil
		count, nextCount = nextCount, map[reflect.Type]int{}
		for _, l := range current {
			if visited[l.rt] {
				continue
			}
			visited[l.rt] = true
			for i := range l.rt.NumField() {
				sf := l.rt.Field(i)
				if !carried(sf) {
					continue
				}
				name, options, _ := strings.Cut(sf.Tag.Get("json"), ",")
				if !validName(name) {
					name = ""
				}
				index := append(slices.Clone(l.index), i)
				ft := sf.Type
				if ft.Name() == "" && ft.Kind() == reflect.Pointer {
					ft = ft.Elem()
				}
				if name == "" && sf.Anonymous && ft.Kind() == reflect.Struct {
					nextCount[ft]++
					if nextCount[ft] == 1 {
						next = append(next, level{ft, index})
					}
					continue
				}
				f := jsonField{name: name, tagged: name != "", index: index, rt: sf.Type}
				if name == "" {
					f.name = sf.Name
				}
				for option := range strings.SplitSeq(options, ",") {
					f.omitEmpty = f.omitEmpty || option == "omitempty"
					f.omitZero = f.omitZero || option == "omitzero"
				}
				fields = append(fields, f)
				if count[l.rt] > 1 {
					// The struct is embedded more than once at this depth. A second copy makes the
					// name ambiguous.
					fields = append(fields, f)
				}
			}
		}
	}
	return dominant(fields)
}

// carried reports whether encoding/json looks at sf at all.
func carried(sf reflect.StructField) bool {
	if sf.Tag.Get("json") == "-" {
		return false
	}
	if sf.IsExported() {
		return true
	}
	// An unexported embedded struct may still have exported fields.
	t := sf.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return sf.Anonymous && t.Kind() == reflect.Struct
}

// dominant returns the fields that win over others of the same name, in the order of their index.
func dominant(fields []jsonField) []jsonField {
	slices.SortFunc(fields, func(a, b jsonField) int {
		if c := cmp.Compare(a.name, b.name); c != 0 {
			return c
		}
		if c := cmp.Compare(len(a.index), len(b.index)); c != 0 {
			return c
		}
		if a.tagged != b.tagged {
			if a.tagged {
				return -1
			}
			return 1
		}
		return slices.Compare(a.index, b.index)
	})
	out := fields[:0]
	for i := 0; i < len(fields); {
		j := i + 1
		for j < len(fields) && fields[j].name == fields[i].name {
			j++
		}
		tie := j > i+1 && len(fields[i].index) == len(fields[i+1].index) && fields[i].tagged == fields[i+1].tagged
		if !tie {
			out = append(out, fields[i])
		}
		i = j
	}
	slices.SortFunc(out, func(a, b jsonField) int { return slices.Compare(a.index, b.index) })
	return out
}

// validName reports whether encoding/json accepts name from a tag.
func validName(name string) bool {
	if name == "" {
		return false
	}
	for _, c := range name {
		if !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			return false
		}
	}
	return true
}
