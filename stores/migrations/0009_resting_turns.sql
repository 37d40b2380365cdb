-- Turns that wait for people while another branch is shown: their calls are answered wherever they are, and a turn that
-- lacks nothing more goes on. Errors: those of 0005_tree_functions.sql.

-- A result for a call that is not among those at hand. Without a message it is that of an open call, on whatever branch,
-- and of no other one: whoever sends such a batch has asked before whether there is one. The first result stays, and
-- opens the subscription that it is said to open; of a preliminary one (`interim`) readers see the last.
--
-- Bodies are searched and changed as text, since jsonb refuses some of them. It is exact: a quotation mark within a
-- JSON string is escaped, so what is looked for with its quotation marks is a field. The step is that of the part whose
-- place the result takes. Readers have that part already, so they need a new snapshot.
create or replace function perdure.apply_store_late_result(t perdure.threads, op jsonb) returns perdure.threads
language plpgsql as $$
declare
    v_call perdure.calls;
begin
    select * into v_call from perdure.calls c
    where c.thread = t.thread and c.call_id = op ->> 'call_id'
      and c.message_id = coalesce(op ->> 'message_id', c.message_id);
    if found then
        if (op ->> 'interim')::boolean then
            return perdure.apply_show_interim(t, op);
        end if;
        if v_call.result is null and (op ->> 'subscribes')::boolean then
            perform perdure.track_subscription(t, perdure.subscription_of(v_call));
        end if;
        return perdure.apply_stage_result(t, op ->> 'call_id', op ->> 'result');
    end if;
    if op ->> 'message_id' is null then
        return t;
    end if;
    update perdure.parts p
    set body = overlay(op ->> 'placed' placing coalesce(substring(p.body from '[{,]("step":\d+)') || ',', '')
                       from 2 for 0)
    where p.message_id = op ->> 'message_id' and p.thread is not distinct from t.thread
      and strpos(p.body, '"kind":"tool_result"') > 0 and strpos(p.body, op ->> 'named') > 0
      and p.body ~ '"outcome":"(interrupted|cancelled|expired)"';
    if found then
        t.seq := t.seq + 1;
        t.tree_seq := t.seq;
        t.shape := t.seq;
        perform perdure.tell_below(t, array[op ->> 'message_id']);
    elsif (op ->> 'refuses')::boolean and not exists (
        select from perdure.parts p
        where p.message_id = op ->> 'message_id' and p.thread is not distinct from t.thread
          and strpos(p.body, '"kind":"tool_call"') > 0 and strpos(p.body, op ->> 'named') > 0
    ) then
        raise exception using errcode = 'PD008', message = op ->> 'message_id', detail = op ->> 'call_id';
    end if;
    return t;
end $$;

-- What a call becomes whose tool goes on sending events. Its arguments are kept as they stand in the part, as JSON text;
-- long ones are left out.
create function perdure.subscription_of(c perdure.calls) returns jsonb language sql stable as $$
    select jsonb_build_object(
        'call_id', c.call_id,
        'tool', coalesce(substring(p.body from '[{,]"tool":"([^"\\]*)"'), ''),
        'arguments', (select found from substring(p.body from '[{,]"arguments":("([^"\\]|\\.)*")') as found
                      where length(found) <= 2000))
    from perdure.parts p where p.message_id = c.message_id and p.position = c.position
$$;
