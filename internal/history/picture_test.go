package history

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPicture(t *testing.T) {
	wrongHolds := &History{Holds: []*Hold{
		{Client: "a", Key: "k", Token: "first", End: 5 * time.Millisecond, Fence: 1_234_567_890},
		{Client: "b", Key: "k", Token: "second", Start: 4 * time.Millisecond, End: 9 * time.Millisecond, Fence: 16},
	}, Operations: ordered([]*Operation{gets(0, 1, "first", 8)})}
	histories := map[string]*History{"overlap": wrongHolds}
	for _, h := range wrongHistories {
		histories[h.name] = &History{Operations: ordered(h.operations)}
	}
	for name, h := range histories {
		v, err := testModel.Check(h)
		require.NoError(t, err, name)
		picture := Picture(h, v, "title", v.String())
		bad := 0
		for _, el := range parseXML(t, picture) {
			if el.Name.Local == "rect" && strings.HasPrefix(attribute(el, "class"), "bad") {
				bad++
			}
		}
		calls := slices.DeleteFunc(slices.Clone(v.Operations), func(o *Operation) bool { return o.Method == Wipe })
		assert.Equal(t, 2*(len(v.Holds)+len(calls)), bad, "%s: each part is to be seen in the violation and in the whole", name)
		for _, h := range v.Holds {
			assert.Contains(t, string(picture), shortFence(h.Fence)+"</text>", name)
			assert.Contains(t, string(picture), escape(h.String()), name)
		}
		for _, o := range v.Operations {
			assert.Contains(t, string(picture), escape(o.String()), name)
		}
		assert.Contains(t, string(picture), escape(v.String()), name)
		assert.NotRegexp(t, `\d+h\d+m`, string(picture), "%s: the axis goes on after the history", name)
		assert.NotRegexp(t, `(src|href)=|url\(`, string(picture), "%s: the page needs another file", name)
	}
}

// A picture may be drawn of a history without a violation, and tokens may hold any bytes.
func TestPictureOfAnything(t *testing.T) {
	h := &History{
		Operations: ordered([]*Operation{gets(0, 1, "<&\x00\xff\"'", 8), noReply(2, 3, TryAcquire, "b"), wiped(4, 5), {Method: Outage, Begin: 60, End: 65}, looked(400, 401, "")}),
		Holds:      []*Hold{{Key: "k", Token: "<&\x00", End: time.Millisecond, Fence: 8}},
	}
	h.Operations[1].Err = errors.New("<]]>\x1b")
	classes := make(map[string]int)
	for _, el := range parseXML(t, Picture(h, nil, "strange", "strange <&\x00>")) {
		classes[attribute(el, "class")]++
	}
	for _, class := range []string{"hold", "wait", "call", "fault", "loss", "tick", "row"} {
		assert.Positive(t, classes[class], class)
	}
}

func parseXML(t *testing.T, text []byte) []xml.StartElement {
	var all []xml.StartElement
	d := xml.NewDecoder(bytes.NewReader(text))
	for {
		token, err := d.Token()
		if err == io.EOF {
			return all
		}
		require.NoError(t, err)
		if el, ok := token.(xml.StartElement); ok {
			all = append(all, el.Copy())
		}
	}
}

func attribute(el xml.StartElement, name string) string {
	for _, a := range el.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}
