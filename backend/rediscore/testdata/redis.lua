-- Runs scripts as Redis does, on the Lua that runs this file. Commands are executed elsewhere: a line of output is a
-- request in JSON, {"call", NAME, ...} for a command and {"done", REPLY} or {"failed", ERROR} at the end of a script.
-- The next line of input is the answer: Lua that returns the reply to the command, or a script with its keys and arguments.

local eval = loadstring or load

-- number is what servers make of a number: of a float that is a whole number, some make "1.0".
local function number(v)
  return math.type and tostring(v) or string.format('%.17g', v)
end

local function json(v)
  if type(v) == 'string' then
    return '"' .. v:gsub('[%c"\\\127-\255]', function(c) return string.format('\\u%04x', c:byte()) end) .. '"'
  elseif type(v) == 'number' then
    return number(v)
  elseif type(v) ~= 'table' then
    return v and '1' or 'null'
  elseif v.err then
    return json('error ' .. v.err)
  end
  local all = {}
  while v[#all + 1] ~= nil do
    all[#all + 1] = json(v[#all + 1])
  end
  return '[' .. table.concat(all, ',') .. ']'
end

local function ask(...)
  io.write(json({...}), '\n')
  io.flush()
  return eval(assert(io.read('*l')))()
end

local function call(...) return ask('call', ...) end

local function try(...)
  local ok, reply = pcall(call, ...)
  if ok then
    return reply
  end
  return {err = reply}
end

-- globals are those that all servers have.
local function globals(keys, args)
  local g = {redis = {call = call, pcall = try}, KEYS = keys, ARGV = args, unpack = unpack}
  for _, name in ipairs({'assert', 'error', 'ipairs', 'math', 'next', 'pairs', 'pcall', 'select', 'string', 'table',
    'tonumber', 'tostring', 'type'}) do
    g[name] = _G[name]
  end
  return setmetatable(g, {
    __index = function(_, name) error('Script attempted to access nonexistent global variable ' .. name) end,
    __newindex = function() error('Attempt to modify a readonly table') end,
  })
end

local source, keys, args = ask('ready')
while source do
  local env = globals(keys, args)
  local script = assert(eval(source, '=script', 't', env))
  if setfenv then
    setfenv(script, env)
  end
  local ok, reply = pcall(script)
  source, keys, args = ask(ok and 'done' or 'failed', reply)
end
