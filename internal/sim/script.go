package sim

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/ast"
	"github.com/yuin/gopher-lua/parse"
)

// newState returns a Lua as Redis sets it up: scripts share it, and can define no globals.
func (s *Server) newState() *lua.LState {
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	for name, open := range map[string]lua.LGFunction{
		lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath,
	} {
		l.Push(l.NewFunction(open))
		l.Push(lua.LString(name))
		l.Call(1, 0)
	}
	l.SetGlobal("redis", l.SetFuncs(l.NewTable(), map[string]lua.LGFunction{
		"call":  func(l *lua.LState) int { return s.call(l, true) },
		"pcall": func(l *lua.LState) int { return s.call(l, false) },
	}))
	l.SetGlobal("tostring", l.NewFunction(toString))
	pcall := l.GetGlobal("pcall")
	l.SetGlobal("pcall", l.NewFunction(func(l *lua.LState) int { return protected(l, pcall) }))
	l.SetGlobal(concat, l.NewFunction(func(l *lua.LState) int {
		l.Push(lua.LString(operand(l, 1) + operand(l, 2)))
		return 1
	}))
	format := l.GetField(l.GetGlobal("string"), "format")
	l.SetField(l.GetGlobal("string"), "format", l.NewFunction(func(l *lua.LState) int { return formatted(l, format) }))
	l.SetMetatable(l.G.Global, l.SetFuncs(l.NewTable(), map[string]lua.LGFunction{
		"__index": func(l *lua.LState) int {
			l.RaiseError("Script attempted to access nonexistent global variable '%s'", l.ToString(2))
			return 0
		},
		"__newindex": func(l *lua.LState) int {
			l.RaiseError("Attempt to modify a readonly table")
			return 0
		},
	}))
	return l
}

// Redis has Lua 5.1, where a number becomes a text of at most 14 digits. This Lua has all digits of a
// whole number, which would hide a fence that is cut. So the operator .. becomes a call of this name.
const concat = "concat numbers as Redis does"

// compiled has what was compiled before, by its source. All servers share it.
var compiled sync.Map

// compile parses a script, puts calls of concat in place of its operators, and compiles it.
func compile(l *lua.LState, source string) (*lua.LFunction, error) {
	if proto, ok := compiled.Load(source); ok {
		return l.NewFunctionFromProto(proto.(*lua.FunctionProto)), nil
	}
	chunk, err := parse.Parse(strings.NewReader(source), "user_script")
	if err != nil {
		return nil, err
	}
	replaceConcat(reflect.ValueOf(chunk))
	proto, err := lua.Compile(chunk, "user_script")
	if err != nil {
		return nil, err
	}
	compiled.Store(source, proto)
	return l.NewFunctionFromProto(proto), nil
}

// replaceConcat goes through a syntax tree.
func replaceConcat(v reflect.Value) {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			replaceConcat(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				replaceConcat(v.Field(i))
			}
		}
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return
		}
		replaceConcat(v.Elem())
		if op, ok := v.Interface().(*ast.StringConcatOpExpr); ok && v.Kind() == reflect.Interface {
			f := &ast.IdentExpr{Value: concat}
			f.SetLine(op.Line())
			call := &ast.FuncCallExpr{Func: f, Args: []ast.Expr{op.Lhs, op.Rhs}}
			call.SetLine(op.Line())
			call.SetLastLine(op.LastLine())
			v.Set(reflect.ValueOf(call))
		}
	}
}

// operand is an operand of .., which must be a text or a number.
func operand(l *lua.LState, n int) string {
	v := l.Get(n)
	if !lua.LVCanConvToString(v) {
		l.RaiseError("attempt to concatenate a %s value", v.Type())
	}
	return text(v, 14)
}

func toString(l *lua.LState) int {
	l.Push(lua.LString(text(l.CheckAny(1), 14)))
	return 1
}

var directive = regexp.MustCompile(`%[-+ #0]*\d*(\.\d+)?([a-zA-Z%])`)

// formatted is string.format, where %s of a number has at most 14 digits.
func formatted(l *lua.LState, format lua.LValue) int {
	n := 1
	for _, d := range directive.FindAllStringSubmatch(l.CheckString(1), -1) {
		if d[2] == "%" {
			continue
		}
		if n++; d[2] == "s" && l.Get(n).Type() == lua.LTNumber {
			l.Replace(n, lua.LString(text(l.Get(n), 14)))
		}
	}
	args := make([]lua.LValue, l.GetTop())
	for i := range args {
		args[i] = l.Get(i + 1)
	}
	if err := l.CallByParam(lua.P{Fn: format, NRet: 1}, args...); err != nil {
		l.RaiseError("%v", err)
	}
	return 1
}

// text is a value as a text, a number with at most so many digits.
func text(v lua.LValue, digits int) string {
	if n, ok := v.(lua.LNumber); ok {
		return strconv.FormatFloat(float64(n), 'g', digits, 64)
	}
	return v.String()
}

// run calls a script.
func (s *Server) run(f *lua.LFunction, keys, args []string) (any, error) {
	s.cost.Scripts++
	s.script, s.wrote = true, false
	defer func() { s.script = false }()
	s.lua.G.Global.RawSetString("KEYS", list(s.lua, keys))
	s.lua.G.Global.RawSetString("ARGV", list(s.lua, args))
	if err := s.lua.CallByParam(lua.P{Fn: f, NRet: 1, Protect: true}); err != nil {
		return nil, raised(err)
	}
	defer s.lua.Pop(1)
	return fromLua(s.lua.Get(-1))
}

func list(l *lua.LState, all []string) *lua.LTable {
	t := l.NewTable()
	for _, v := range all {
		t.Append(lua.LString(v))
	}
	return t
}

// raised is the error of a script. Redis adds where it was raised.
func raised(err error) error {
	text := err.Error()
	if e, ok := err.(*lua.ApiError); ok {
		if t, ok := e.Object.(*lua.LTable); ok {
			return Error(fmt.Sprintf("%v script: user_script, on @user_script.", t.RawGetString("err")))
		}
		text = e.Object.String()
	}
	return Error("ERR " + text + " script: user_script, on @user_script.")
}

// fromLua converts what a script returns.
func fromLua(v lua.LValue) (any, error) {
	switch v := v.(type) {
	case lua.LNumber:
		return int64(v), nil
	case lua.LString:
		return string(v), nil
	case lua.LBool:
		if v {
			return int64(1), nil
		}
	case *lua.LTable:
		if e := v.RawGetString("err"); e != lua.LNil {
			return nil, Error(e.String())
		}
		if ok := v.RawGetString("ok"); ok != lua.LNil {
			return ok.String(), nil
		}
		all := []any{}
		for i := 1; v.RawGetInt(i) != lua.LNil; i++ {
			e, err := fromLua(v.RawGetInt(i))
			if err != nil {
				return nil, err
			}
			all = append(all, e)
		}
		return all, nil
	}
	return nil, nil
}

// A status is a reply such as OK.
type status string

// toLua converts the reply to a command.
func toLua(l *lua.LState, reply any) lua.LValue {
	switch v := reply.(type) {
	case nil:
		return lua.LFalse
	case int64:
		return lua.LNumber(v)
	case string:
		return lua.LString(v)
	case status:
		t := l.NewTable()
		t.RawSetString("ok", lua.LString(v))
		return t
	case []any:
		t := l.NewTable()
		for i, e := range v {
			t.RawSetInt(i+1, toLua(l, e))
		}
		return t
	}
	panic(fmt.Sprintf("a reply of type %T", reply))
}

const errNoText = Error("ERR Lua redis lib command arguments must be strings or integers")

// protected is pcall, which returns the text of an error of redis.call, not the table.
func protected(l *lua.LState, pcall lua.LValue) int {
	n := l.GetTop()
	l.Insert(pcall, 1)
	l.Call(n, lua.MultRet)
	if t, ok := l.Get(2).(*lua.LTable); ok && l.Get(1) == lua.LFalse {
		if text, ok := t.RawGetString("err").(lua.LString); ok {
			l.Replace(2, text)
		}
	}
	return l.GetTop()
}

// call is redis.call, or redis.pcall, which returns an error in place of raising it.
func (s *Server) call(l *lua.LState, raise bool) int {
	args := make([]string, l.GetTop())
	texts := true
	for i := range args {
		v := l.Get(i + 1)
		texts = texts && lua.LVCanConvToString(v)
		args[i] = text(v, 17)
	}
	var reply any
	err := error(errNoText)
	if texts {
		reply, err = s.execute(args)
	}
	if err == nil {
		l.Push(toLua(l, reply))
		return 1
	}
	t := l.NewTable()
	t.RawSetString("err", lua.LString(err.Error()))
	if raise {
		l.Error(t, 1)
	}
	l.Push(t)
	return 1
}
