// Package safetext makes text from elsewhere safe to look at: whatever could move a cursor, hide or reorder text shows as
// an escape instead.
//
// It never drops a character: what it makes shows that there was one. It does not escape markup, which is text as well.
package safetext

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
)

// maxMarks is how many combining marks may sit on one letter: enough for any language, too few to bury the lines
// around it.
const maxMarks = 4

// Visible says whether a character shows as what it is: not a control, not invisible, not one that reorders text or
// picks a variant of the one before.
func Visible(r rune) bool {
	const blankBraille = 0x2800
	return unicode.IsPrint(r) && r != blankBraille &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// Text makes one line of text safe to show. The ends of lines are escaped too: who shows many lines takes them apart
// before.
func Text(s string) string {
	return escape(s, func(r rune) string { return fmt.Sprintf("\\u%04x", r) })
}

// JSON makes a JSON document safe to show. It still means the same.
func JSON(document string) string {
	return escape(document, func(r rune) string {
		if first, second := utf16.EncodeRune(r); first != unicode.ReplacementChar {
			return fmt.Sprintf("\\u%04x\\u%04x", first, second)
		}
		return fmt.Sprintf("\\u%04x", r)
	})
}

func escape(s string, written func(rune) string) string {
	var out strings.Builder
	marks := 0
	for _, r := range s {
		if unicode.Is(unicode.M, r) {
			marks++
		} else {
			marks = 0
		}
		if Visible(r) && marks <= maxMarks {
			out.WriteRune(r)
			continue
		}
		out.WriteString(written(r))
	}
	return out.String()
}

// Piece is a part of a text: as it is, or the escapes of what does not show.
type Piece struct {
	Text   string
	Hidden bool
}

// Pieces takes a text apart, for who can show what is hidden in it as something of another kind. The ends of lines are text.
func Pieces(s string) []Piece {
	var all []Piece
	add := func(text string, hidden bool) {
		if last := len(all) - 1; last >= 0 && all[last].Hidden == hidden {
			all[last].Text += text
			return
		}
		all = append(all, Piece{text, hidden})
	}
	marks := 0
	for _, r := range s {
		if unicode.Is(unicode.M, r) {
			marks++
		} else {
			marks = 0
		}
		if r == '\n' || Visible(r) && marks <= maxMarks {
			add(string(r), false)
			continue
		}
		add(fmt.Sprintf("\\u%04x", r), true)
	}
	return all
}

// MixesAlphabets tells whether a text has Latin letters beside those of alphabets that look like them.
func MixesAlphabets(text string) bool {
	latin, alike := false, false
	for _, r := range text {
		latin = latin || unicode.Is(unicode.Latin, r)
		alike = alike || unicode.In(r, unicode.Cyrillic, unicode.Greek, unicode.Armenian, unicode.Cherokee, unicode.Coptic, unicode.Lisu)
	}
	return latin && alike
}
