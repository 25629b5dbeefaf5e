"""The bookkeeping of a consumer group, as Lua that the server runs: each script is atomic.

    stream ── pull ──▶ 16 partitions by key ── each held by one member ── XACK per entry

The Redis consumers of the group are not the members but the partitions: `partition-0` to `partition-15`. So each
partition has its own list of pending entries, in the order of the stream, and a change of hands moves none of them: the
new holder is given what is pending from its beginning. Whoever pulls new entries puts each to its partition's list, in
the same script; the delivery count of one that nobody was given yet is 0.

Who holds what is in a hash beside the stream, `<topic>:pillarbox:<consumer>`:

    m:<member>      until when its lease runs (ms, the server's clock), and its connection's id
    o:<partition>   the member that holds it, and the epoch of that holding
    epoch           the newest epoch

    free ──take (new epoch)──▶ held ──more than the fair share──▶ leaving ──all acknowledged──▶ free
                                 └──the member is dead: free at once, what was given out comes again
"""

from hashlib import sha1

from pillarbox.brokers.partitions import PARTITIONS

MOST_PENDING = 50_000
"""Nobody pulls when so many are pending: a member that hangs must not fill the server's memory."""

# allow-oom: what is in the stream must be read when the server's memory is full, or it stays full.
_HEAD = f"""#!lua flags=allow-oom
local stream, state, group, me = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local PARTITIONS = {PARTITIONS}
"""

POLL = (
    _HEAD
    + """
local lease, client, room, most = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])

-- What we were told: connections that are gone, and what the caller knows of its own partitions.
local gone, known, at = {}, {}, 8
for _ = 1, tonumber(ARGV[7]) do
  gone[ARGV[at]] = ARGV[at + 1]
  at = at + 2
end
while at <= #ARGV do
  known[tonumber(ARGV[at])] = {epoch = ARGV[at + 1], cursor = ARGV[at + 2], flying = tonumber(ARGV[at + 3])}
  at = at + 4
end

-- Who is alive, and who holds what.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local names, others, alive, owners, epochs = {me}, {}, {[me] = true}, {}, {}
local expires = 0
local rows = redis.call('HGETALL', state)
for i = 1, #rows, 2 do
  local kind, name = rows[i]:sub(1, 2), rows[i]:sub(3)
  local first, second = rows[i + 1]:match('^(%S+) (%S+)$')
  if kind == 'm:' and name == me then
    expires = second == client and tonumber(first) or 0
  elseif kind == 'm:' then
    if tonumber(first) < now or gone[name] == second then
      redis.call('HDEL', state, rows[i])
    else
      alive[name] = true
      names[#names + 1] = name
      others[#others + 1] = {name, second}
    end
  elseif kind == 'o:' then
    owners[tonumber(name)], epochs[tonumber(name)] = first, second
  end
end
if expires - now < lease * 2 / 3 then
  redis.call('HSET', state, 'm:' .. me, string.format('%.0f %s', now + lease, client))
end

-- The fair share: shares differ by one at most, and add up.
table.sort(names)
local share = math.floor(PARTITIONS / #names)
for rank, name in ipairs(names) do
  if name == me and rank <= PARTITIONS % #names then share = share + 1 end
end
local held, keep, count = {}, {}, 0
for p = 0, PARTITIONS - 1 do
  if owners[p] and not alive[owners[p]] then owners[p] = nil end
  if owners[p] == me then
    count = count + 1
    local view = known[p]
    if not view or view.epoch ~= epochs[p] then view = {cursor = '', flying = 0} end
    if count <= share then
      keep[p] = view
      held[#held + 1] = {p, epochs[p]}
    elseif view.flying == 0 then
      redis.call('HDEL', state, 'o:' .. p)
    else
      held[#held + 1] = {p, epochs[p]}
    end
  end
end
for p = 0, PARTITIONS - 1 do
  if not owners[p] and count < share then
    local epoch = tostring(redis.call('HINCRBY', state, 'epoch', 1))
    redis.call('HSET', state, 'o:' .. p, me .. ' ' .. epoch)
    keep[p] = {cursor = '', flying = 0}
    held[#held + 1] = {p, epoch}
    count = count + 1
  end
end

-- What is pending; a group that is not there begins at the oldest entry.
local pending = redis.pcall('XPENDING', stream, group)
if pending.err then
  if pending.err:sub(1, 7) ~= 'NOGROUP' then return pending end
  redis.call('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
  pending = {0, false, false, false}
end
local waiting, behind = {}, {}
for _, row in ipairs(pending[4] or {}) do
  local p = tonumber(row[1]:match('^partition%-(%d+)$'))
  if p and keep[p] then waiting[#waiting + 1] = p end
end

-- First what waits in the lists of our partitions behind what we were given, in equal parts. It is looked up each time:
-- the caller's own count may be wrong, and then a new entry would overtake.
local found, lost = {}, 0
local part = math.max(1, math.floor(room / math.max(1, #waiting)))
for i = 1, #waiting do
  local p = waiting[(i + now) % #waiting + 1]
  local from = keep[p].cursor == '' and '-' or '(' .. keep[p].cursor
  local limit = math.min(part, room - #found)
  local list = limit > 0 and redis.call('XPENDING', stream, group, from, '+', limit, 'partition-' .. p) or {}
  behind[p] = #list == limit
  if #list > 0 then
    local ids, tries = {}, {}
    for n, row in ipairs(list) do ids[n], tries[row[1]] = row[1], row[4] end
    -- What was trimmed meanwhile does not come back, and is pending no more.
    local entries = redis.call('XCLAIM', stream, group, 'partition-' .. p, 0, unpack(ids))
    for _, entry in ipairs(entries) do
      found[#found + 1] = {p, entry[1], tries[entry[1]], entry[2]}
    end
    lost = lost + #list - #entries
  end
end

-- Then new entries: each goes to its partition's list, and ours are given out if nothing waits before them there.
local function partition_of(id, fields)
  for i = 1, #fields, 2 do
    if fields[i] == 'key' then return tonumber(redis.sha1hex(fields[i + 1]):sub(-1), 16) end
  end
  return tonumber(redis.sha1hex(id):sub(-1), 16)
end
local pulled, total = 0, pending[1]
while #found < room and total + pulled < most and pulled < 4 * room and next(keep) do
  local read = redis.call('XREADGROUP', 'GROUP', group, 'intake', 'COUNT', room - #found, 'STREAMS', stream, '>')
  if not read then break end
  local given, kept = {}, {}
  for _, entry in ipairs(read[1][2]) do
    local p = partition_of(entry[1], entry[2])
    local list = kept
    if keep[p] and not behind[p] and #found < room then
      found[#found + 1] = {p, entry[1], 0, entry[2]}
      list = given
    else
      behind[p] = true
    end
    list[p] = list[p] or {}
    table.insert(list[p], entry[1])
    pulled = pulled + 1
  end
  for p, ids in pairs(given) do
    ids[#ids + 1] = 'JUSTID'
    redis.call('XCLAIM', stream, group, 'partition-' .. p, 0, unpack(ids))
  end
  for p, ids in pairs(kept) do
    for _, word in ipairs({'RETRYCOUNT', '0', 'JUSTID'}) do ids[#ids + 1] = word end
    redis.call('XCLAIM', stream, group, 'partition-' .. p, 0, unpack(ids))
  end
end

-- From where to wait for news.
local last = ''
if #found == 0 then
  for _, row in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local facts = {}
    for i = 1, #row, 2 do facts[row[i]] = row[i + 1] end
    if facts['name'] == group then last = facts['last-delivered-id'] end
  end
end
return {held, found, others, last, lost}
"""
)

# What another member has taken over meanwhile is passed over.
ACKNOWLEDGE = (
    _HEAD
    + """
local at = 3
while at <= #ARGV do
  local p, epoch, count = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  if redis.call('HGET', state, 'o:' .. p) == me .. ' ' .. epoch then
    redis.call('XACK', stream, group, unpack(ARGV, at + 3, at + 2 + count))
  end
  at = at + 3 + count
end
return 0
"""
)

LEAVE = (
    _HEAD
    + """
for p = 0, PARTITIONS - 1 do
  local owner = redis.call('HGET', state, 'o:' .. p)
  if owner and owner:match('^%S+') == me then redis.call('HDEL', state, 'o:' .. p) end
end
return redis.call('HDEL', state, 'm:' .. me)
"""
)


def sha_of(script: str) -> str:
    """Give the name under which the server remembers a script."""
    return sha1(script.encode(), usedforsecurity=False).hexdigest()
